"""Flash attention over paged KV, as the Triton functions that the attention kernels share: load a tile of keys and
values, score it against a tile of queries, add it to an online softmax, and combine the partial results of split KV.

The state of an online softmax, per query: `row_max` and `row_sum` of the exponentials so far, and `acc`, their weighted
sum of values. Exponents are of 2. Partial results are stored normalised, with the logarithm of their sum (`lse`).
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_SPLITS = 64
MIN_PROGRAMS = 512  # to aim for: about four per multiprocessor

LOG2_E = tl.constexpr(math.log2(math.e))


def log2_scale(scale: float, softcap: float) -> float:
    """The factor of q·k that gives exponents of 2. A soft-cap acts on the scores first, so it gets them unchanged."""
    return scale if softcap else scale * math.log2(math.e)


def num_splits(programs: int) -> int:
    """Into how many splits the keys of each tile go, where one split each would make so many programs."""
    return min(MAX_SPLITS, -(-MIN_PROGRAMS // programs))


def dot_precision(q: Tensor) -> str:
    """Of tl.dot: float32 is computed as such, not as tf32."""
    return "ieee" if q.dtype == torch.float32 else "tf32"


@triton.jit
def load_kv_tile(
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
    """Keys [D, n] and values [n, D] of one KV head at n positions of a row, found through its block table. All
    positions must exist: beyond the end the caller repeats the last one and masks its score, which is faster than
    masked loads."""
    block = tl.load(table + position // BLOCK_SIZE).to(tl.int64)  # pages are larger than 2^31 numbers
    at = (block * BLOCK_SIZE + position % BLOCK_SIZE) * (KV_HEADS * DIM) + kv_head * DIM
    dim = tl.arange(0, D)
    k = tl.load(keys + at[None, :] + dim[:, None], mask=(dim < DIM)[:, None], other=0.0)
    v = tl.load(values + at[:, None] + dim[None, :], mask=(dim < DIM)[None, :], other=0.0)
    return k, v


@triton.jit
def qk_scores(q, k, scale, softcap, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr):
    """q [m, dim] × k [dim, n], as exponents of 2. `scale` is `log2_scale`."""
    scores = tl.dot(q, k, input_precision=PRECISION) * scale
    if SOFTCAP:  # softcap * tanh(scores / softcap)
        scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0) * LOG2_E
    return scores


@triton.jit
def online_softmax(scores, v, row_max, row_sum, acc, PRECISION: tl.constexpr):
    """Add a tile to the state: scores [m, n] (-inf: masked), v [n, dim]; gives the new state. A query that has seen
    no key yet has row_max = -inf, and -inf - -inf would be NaN: hence `base`."""
    new_max = tl.maximum(row_max, tl.max(scores, axis=1))
    base = tl.where(new_max == float("-inf"), 0.0, new_max)
    weights = tl.exp2(scores - base[:, None])
    rescale = tl.exp2(row_max - base)
    row_sum = row_sum * rescale + tl.sum(weights, axis=1)
    acc = tl.dot(weights.to(v.dtype), v, acc * rescale[:, None], input_precision=PRECISION)
    return new_max, row_sum, acc


@triton.jit
def combine_splits(parts, lse, place, splits, used, DIM: tl.constexpr, D: tl.constexpr, S: tl.constexpr):
    """The softmax over all splits, of which the first `used` have results: [D] float32."""
    split = tl.arange(0, S)
    dim = tl.arange(0, D)
    log_sum = tl.load(lse + place * splits + split, mask=split < used, other=float("-inf"))
    weight = tl.exp2(log_sum - tl.max(log_sum, axis=0))
    weight = weight / tl.sum(weight, axis=0)
    real = (split < used)[:, None] & (dim < DIM)[None, :]
    part = tl.load(parts + (place * splits + split)[:, None] * DIM + dim[None, :], mask=real, other=0.0)
    return tl.sum(part * weight[:, None], axis=0)
