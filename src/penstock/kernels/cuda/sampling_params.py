"""What the requests in the slots say about how their tokens are drawn, where kernels read it by slot; and room for what
these kernels hand each other. Draws are told nothing else but which slots the rows are of, and where their tokens go.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.launch import power_of_2

PART = 8192  # tokens of a row that a program takes
KEPT = 128  # of each part, at most, that are looked at first where only the likeliest are wanted
FEW = 8192  # how many of a row are copied together, at most
COUNTERS = 128  # rows whose tokens are counted at a time

# As one slot has it. Filters that are off have values that change nothing: see `sample.filters.Numbers`.
RULE = np.dtype(
    [
        ("stream", np.int64),  # of noise
        ("temperature", np.float32),  # 0: greedy
        ("top_k", np.int32),
        ("top_p", np.float32),
        ("log_min_p", np.float32),
        ("prompt_length", np.int32),
        *((name, np.float32) for name in ("repetition", "presence", "frequency")),
        ("biases", np.int32),  # how many
        ("masked", np.int32),  # whether some tokens may not be drawn
    ]
)
WORDS = tl.constexpr(RULE.itemsize // 4)
TEMPERATURE, TOP_K, TOP_P, LOG_MIN_P, PROMPT_LENGTH, REPETITION, PRESENCE, FREQUENCY, BIASES, MASKED = (
    tl.constexpr(RULE.fields[name][1] // 4)  # type: ignore[index]
    for name in RULE.names[1:]  # type: ignore[index]
)
GOLDEN = tl.constexpr(0x9E3779B97F4A7C15 - (1 << 64))


class Rules(NamedTuple):
    table: Tensor  # [slots, WORDS] int32: a RULE each
    bias_tokens: Tensor  # [slots, most biases] int32
    biases: Tensor  # [slots, most biases] float32
    drawable: Tensor  # [slots, vocab / 32] int32: a bit for each token, the lowest first; what "masked" is about
    tokens: Tensor  # [slots, tokens] int32: the sequences; what is drawn goes there
    hashes: Tensor  # [vocab] int32: see `sample.noise`

    @classmethod
    def blank(cls, tokens: Tensor, hashes: Tensor, most_biases: int) -> Rules:
        def zeros(width: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(len(tokens), width, dtype=dtype, device=tokens.device)

        words = -(-len(hashes) // 32)
        biases = zeros(most_biases), zeros(most_biases, torch.float32)
        return cls(zeros(WORDS.value), *biases, zeros(words), tokens, hashes)


class Room(NamedTuple):
    """For the draws of a step: what it holds is good from one kernel to the next."""

    tops: Tensor  # [rows, parts] float32: the largest logit of each part, and
    places: Tensor  # [rows, parts] int32: its token
    spots: Tensor  # [rows, parts] int32: that of the largest with noise; or the number of the part's likeliest,
    ends: Tensor  # [rows, parts] float32: the value that these are above,
    masses: Tensor  # [rows, parts] float32: and the mass of the whole part
    few_values: Tensor  # [rows, FEW] float32
    few_tokens: Tensor  # [rows, FEW] int32
    counts: Tensor  # [COUNTERS, vocab] int32

    @classmethod
    def of(cls, rows: int, vocab: int, device: torch.device) -> Room:
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
def integer(table, slot, FIELD: tl.constexpr):
    return tl.load(table + slot * WORDS + FIELD)


@triton.jit
def number(table, slot, FIELD: tl.constexpr):
    return integer(table, slot, FIELD).to(tl.float32, bitcast=True)


@triton.jit
def are_cut(table, slot):
    """Whether top_k or top_p is on."""
    return (integer(table, slot, TOP_K) > 0) | (number(table, slot, TOP_P) < float("inf"))


@triton.jit
def noise_key(table, slot, position):
    """`sample.noise.row_keys`, of one row."""
    stream = tl.load((table + slot * WORDS).to(tl.pointer_type(tl.int64)))
    x = (stream + position * GOLDEN).to(tl.uint64, bitcast=True)
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return (x ^ (x >> 31)).to(tl.int64, bitcast=True)


@triton.jit
def drawn_at(rows, row, count):
    """The slot of a row, and the position that its token will have: 0 where none is drawn."""
    return tl.load(rows + row), tl.load(rows + 2 * count + row)


@triton.jit
def record(tokens, slot_tokens, token, row, slot, position, width):
    """What was drawn, unless that is nothing: -1, or no position for it."""
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(slot_tokens + slot * width + position, token.to(tl.int32), mask=(position > 0) & (token >= 0))
