"""What the attention kernels share: the scores of a tile of queries against a tile of keys, and where keys lie."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_SPLITS = 64
PROGRAMS = 512  # wanted at least: about four for each multiprocessor

LOG2_E = tl.constexpr(math.log2(math.e))


def log2_scale(scale: float, softcap: float) -> float:
    """A soft-cap acts on the scores proper; without one, the way to exponents of 2 is one factor more."""
    return scale if softcap else scale * math.log2(math.e)


def splits_for(programs: int) -> int:
    """Into how many the keys are split where there would be so many programs otherwise."""
    return min(MAX_SPLITS, -(-PROGRAMS // programs))


def precision(q: Tensor) -> str:
    """Of products: float32 is computed as such, not as tf32."""
    return "ieee" if q.dtype == torch.float32 else "tf32"


@triton.jit
def tile_of(
    keys,
    values,
    table,
    position,
    kv_head,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
):
    """The keys [D, n] and values [n, D] of a head at n positions of a row, all of which have some: where a tile reaches
    beyond, the last one is read again, and masked later, which is faster than not to read it."""
    block = tl.load(table + position // BLOCK_SIZE).to(tl.int64)  # pages are larger than 2^31 numbers
    at = (block * BLOCK_SIZE + position % BLOCK_SIZE) * (KV_HEADS * DIM) + kv_head * DIM
    dim = tl.arange(0, D)
    k = tl.load(keys + at[None, :] + dim[:, None], mask=(dim < DIM)[:, None], other=0.0)
    v = tl.load(values + at[:, None] + dim[None, :], mask=(dim < DIM)[None, :], other=0.0)
    return k, v


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


@triton.jit
def combine(parts, masses, place, splits, used, DIM: tl.constexpr, D: tl.constexpr, S: tl.constexpr):
    """What the first `used` of the splits have made, by their share of the softmax: [D] float32."""
    split = tl.arange(0, S)
    dim = tl.arange(0, D)
    mass = tl.load(masses + place * splits + split, mask=split < used, other=float("-inf"))
    weight = tl.exp2(mass - tl.max(mass, axis=0))
    weight = weight / tl.sum(weight, axis=0)
    real = (split < used)[:, None] & (dim < DIM)[None, :]
    part = tl.load(parts + (place * splits + split)[:, None] * DIM + dim[None, :], mask=real, other=0.0)
    return tl.sum(part * weight[:, None], axis=0)
