"""Sampling parameters on the device, which draw kernels read by slot, and the scratch memory between these kernels.

A launch gets nothing else but the slots of its rows and the positions of their tokens, so one CUDA graph serves any
mixture of requests. `kernels.sampling_layout` describes a slot's parameters.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels import sampling_layout
from penstock.kernels.cuda.launch import power_of_2

PART = 8192  # tokens of a row that one program takes
KEPT = 128  # candidates of each part, at most, that top-k/top-p looks at first
FEW = 8192  # candidates of a row, at most, that are copied together
COUNTERS = 128  # rows whose tokens are counted at a time

DRAW_PARAMS = np.dtype(sampling_layout.dtype())  # of one slot
WORDS = tl.constexpr(sampling_layout.SIZE // 4)


def _word(name: str) -> tl.constexpr:
    return tl.constexpr(sampling_layout.word(name))


STREAM, PROMPT_LENGTH = _word("stream"), _word("prompt_length")
TEMPERATURE, TOP_K, TOP_P, LOG_MIN_P = map(_word, ("temperature", "top_k", "top_p", "log_min_p"))
REPETITION, PRESENCE, FREQUENCY = map(_word, ("repetition", "presence", "frequency"))
NUM_BIASES, MASKED = _word("num_biases"), _word("masked")
GOLDEN = tl.constexpr(0x9E3779B97F4A7C15 - (1 << 64))


class SamplingTables(NamedTuple):
    slot_params: Tensor  # [slots, WORDS] int32: DRAW_PARAMS each
    bias_tokens: Tensor  # [slots, most biases] int32
    biases: Tensor  # [slots, most biases] float32
    # [slots + drafts, vocab / 32] int32: a bit for each token, the lowest first; read where `masked` is 1
    allowed: Tensor
    tokens: Tensor  # [slots, tokens] int32: the sequences; drawn tokens are written there
    hashes: Tensor  # [vocab] int32: see `sample.reference.noise`

    @classmethod
    def blank(cls, tokens: Tensor, hashes: Tensor, most_biases: int, num_drafts: int = 0) -> SamplingTables:
        """`num_drafts`: of a step, at most."""

        def zeros(width: int, dtype: torch.dtype = torch.int32, more: int = 0) -> Tensor:
            return torch.zeros(len(tokens) + more, width, dtype=dtype, device=tokens.device)

        words = -(-len(hashes) // 32)
        biases = zeros(most_biases), zeros(most_biases, torch.float32)
        return cls(zeros(WORDS.value), *biases, zeros(words, more=num_drafts), tokens, hashes)


class DrawScratch(NamedTuple):
    """Between the kernels of one step's draws."""

    tops: Tensor  # [rows, parts] float32: the largest logit of each part
    places: Tensor  # [rows, parts] int32: the token of that logit
    spots: Tensor  # [rows, parts] int32: without top-k/top-p the part's token of the largest score + noise, else
    #                its number of candidates
    ends: Tensor  # [rows, parts] float32: the cutoff that the part's candidates are above
    masses: Tensor  # [rows, parts] float32: unnormalised probability of the whole part
    few_values: Tensor  # [rows, FEW] float32: candidates
    few_tokens: Tensor  # [rows, FEW] int32
    counts: Tensor  # [COUNTERS, vocab] int32

    @classmethod
    def of(cls, rows: int, vocab: int, device: torch.device) -> DrawScratch:
        def zeros(count: int, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(count, width, dtype=dtype, device=device)

        parts = -(-vocab // PART)
        return cls(
            tops=zeros(rows, parts),
            places=zeros(rows, parts, torch.int32),
            spots=zeros(rows, parts, torch.int32),
            ends=zeros(rows, parts),
            masses=zeros(rows, parts),
            few_values=zeros(rows, FEW),
            few_tokens=zeros(rows, FEW, torch.int32),
            counts=zeros(min(rows, COUNTERS), vocab, torch.int32),
        )

    @property
    def parts(self) -> tuple[int, int]:
        """How many parts a row has, and the power of 2 that holds them."""
        parts = self.tops.shape[1]
        return parts, power_of_2(parts)


@triton.jit
def load_int(slot_params, slot, FIELD: tl.constexpr):
    return tl.load(slot_params + slot * WORDS + FIELD)


@triton.jit
def load_float(slot_params, slot, FIELD: tl.constexpr):
    return load_int(slot_params, slot, FIELD).to(tl.float32, bitcast=True)


@triton.jit
def has_top_k_top_p(slot_params, slot):
    return (load_int(slot_params, slot, TOP_K) > 0) | (load_float(slot_params, slot, TOP_P) < float("inf"))


@triton.jit
def least_score(slot_params, slot):
    """Scores below it are filtered out, regardless of top_k and top_p. The largest score is 0."""
    return load_float(slot_params, slot, LOG_MIN_P)


@triton.jit
def noise_key(slot_params, slot, position):
    """`sample.reference.noise.row_keys`, of one row."""
    stream = tl.load((slot_params + slot * WORDS + STREAM).to(tl.pointer_type(tl.int64)))
    x = (stream + position * GOLDEN).to(tl.uint64, bitcast=True)
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return (x ^ (x >> 31)).to(tl.int64, bitcast=True)


@triton.jit
def draw_target(rows, row, count):
    """The slot of a row, and the position of the token it draws; 0: it draws none."""
    return tl.load(rows + row), tl.load(rows + 2 * count + row)


@triton.jit
def write_token(tokens, slot_tokens, token, row, slot, position, width):
    """Write a drawn token. -1: not drawn yet; position 0: the row draws none."""
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(slot_tokens + slot * width + position, token.to(tl.int32), mask=(position > 0) & (token >= 0))
