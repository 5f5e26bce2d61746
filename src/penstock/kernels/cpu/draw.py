"""Draws by the native kernels outside a program, one row after the other."""

from __future__ import annotations

import numpy as np

from penstock.kernels.arrays import Array
from penstock.kernels.cpu import library
from penstock.kernels.cpu.draw_table import DRAW_PARAMS, DrawTable, LogprobTable

SCRATCH_ROWS = 6  # of vocab + 16 floats; draw_scratch() in native/draw.h


def draw(logits: Array, draws: DrawTable, logprobs: LogprobTable | None = None) -> list[int]:
    """One token from each row of `logits` [rows, vocab] float32, which are changed."""
    loaded = library.load()
    assert loaded is not None
    vocab, scratch = logits.shape[1], _scratch(logits)
    return [
        loaded.penstock_draw(
            logits[row].ctypes.data,
            vocab,
            draws.address + row * DRAW_PARAMS.itemsize,
            draws.slots.address,
            None if logprobs is None else logprobs.address,
            row,
            scratch.ctypes.data,
        )
        for row in range(len(draws.table))
    ]


def filter_scores(logits: Array, draws: DrawTable) -> Array:
    """[vocab] float32: the scores that the draw from `logits` [vocab] adds noise to, -inf where a token is filtered
    out. `draws` has one row."""
    loaded = library.load()
    assert loaded is not None
    scores, scratch = np.empty_like(logits), _scratch(logits)
    loaded.penstock_filter(
        logits.ctypes.data,
        len(logits),
        draws.address,
        draws.slots.address,
        scores.ctypes.data,
        scratch.ctypes.data,
    )
    return scores


def _scratch(logits: Array) -> Array:
    return np.empty(SCRATCH_ROWS * (logits.shape[-1] + 16), dtype=np.float32)
