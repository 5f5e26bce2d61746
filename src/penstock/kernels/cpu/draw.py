"""Draws by the native kernel outside a program, one row after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.kernels.cpu import library
from penstock.kernels.cpu.program import DRAW_PARAMS, DrawTable

SCRATCH_ROWS = 5  # of vocab + 16 floats; draw_scratch() in native/draw.h


def draw(logits: Tensor, draws: DrawTable) -> Tensor:
    """logits [rows, vocab] float32 -> [rows] int64"""
    loaded = library.load()
    assert loaded is not None
    vocab = logits.shape[1]
    scratch = torch.empty(SCRATCH_ROWS * (vocab + 16))
    row_at, draw_at, scratch_at = logits.data_ptr(), draws.address, scratch.data_ptr()
    row_bytes = logits.stride(0) * logits.itemsize
    tokens = [
        loaded.penstock_draw(row_at + row * row_bytes, vocab, draw_at + row * DRAW_PARAMS.itemsize, scratch_at)
        for row in range(len(draws.table))
    ]
    return torch.tensor(tokens, dtype=torch.int64)
