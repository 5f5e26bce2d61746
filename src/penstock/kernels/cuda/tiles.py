"""What the attention kernels share: the scores of a tile of queries against a tile of keys, and where keys lie."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = tl.constexpr(math.log2(math.e))


def log2_scale(scale: float, softcap: float) -> float:
    """A soft-cap acts on the scores proper; without one, the way to exponents of 2 is one factor more."""
    return scale if softcap else scale * math.log2(math.e)


def precision(q: Tensor) -> str:
    """Of products: float32 is computed as such, not as tf32."""
    return "ieee" if q.dtype == torch.float32 else "tf32"


@triton.jit
def slots_of(table, position, seen, BLOCK_SIZE: tl.constexpr):
    """Where the keys at `position` of a row lie in the pages. int64: pages are larger than 2^31 numbers."""
    block = tl.load(table + position // BLOCK_SIZE, mask=seen, other=0)
    return block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE


@triton.jit
def scores_of(q, k, scale, softcap, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr):
    """q [m, dim] × k [dim, n], as exponents of 2. `scale` is that of `log2_scale`."""
    scores = tl.dot(q, k, input_precision=PRECISION) * scale
    if SOFTCAP:  # softcap * tanh(scores / softcap)
        scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0) * LOG2_E
    return scores


@triton.jit
def accumulate(scores, v, best, mass, mixed, PRECISION: tl.constexpr):
    """One step of online softmax: scores [m, n] (-inf: not seen), v [n, dim]; gives the new state. A row that has seen
    nothing yet has best = -inf, which must not meet itself in a subtraction."""
    higher = tl.maximum(best, tl.max(scores, axis=1))
    base = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(best - base)
    mass = mass * shrink + tl.sum(weights, axis=1)
    mixed = tl.dot(weights.to(v.dtype), v, mixed * shrink[:, None], input_precision=PRECISION)
    return higher, mass, mixed
