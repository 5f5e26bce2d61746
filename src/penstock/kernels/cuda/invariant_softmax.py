"""Online softmax whose result for a query does not depend on the kernel that computes it, as the Triton functions that
the batch-invariant attention kernels share.

Keys go in tiles from multiples of `KEYS` on, and tiles in chunks (`invariant_splits`). A chunk starts from nothing, and
chunks are added to the result in their order. What a query does not see changes nothing: a masked key has weight 0, and
so a tile or chunk of such keys adds 0 and scales by 1. Nor does the number of queries in a tile: tensor cores give the
same sums for all shapes of tiles, and the sum of weights is exact. Kernels with these functions are compiled with
`EXACT`, since whether a product and a sum become one instruction must not depend on what is around them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.kernels.cuda.attention_tiles import LOG2_E

KEYS = {2: 64, 4: 32}  # of a tile, by bytes per number
WIDE = 128  # head_dim beyond which kernels take twice as many warps, since they hold two states
EXACT: dict[str, int] = {"enable_fp_fusion": False}  # options of the compiler

# Adding and subtracting it rounds a weight, which is at most 1, to a multiple of 2^-18. A float32 holds sums of up to
# 64 of these exactly, in whichever order they are added.
GRID = tl.constexpr(48.0)


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
    """Keys [D, n] and values [n, D], both floats, of one KV head at n positions of a row, found through its block
    table. All positions must exist: beyond the end the caller repeats the last one and masks its score, which is faster
    than masked loads."""
    block = tl.load(table + position // BLOCK_SIZE).to(tl.int64)  # pages are larger than 2^31 numbers
    at = (block * BLOCK_SIZE + position % BLOCK_SIZE) * (KV_HEADS * DIM) + kv_head * DIM
    dim = tl.arange(0, D)
    k = tl.load(keys + at[None, :] + dim[:, None], mask=(dim < DIM)[:, None], other=0.0)
    v = tl.load(values + at[:, None] + dim[None, :], mask=(dim < DIM)[None, :], other=0.0)
    return k, v


@triton.jit
def no_keys(M: tl.constexpr, D: tl.constexpr):
    """The state before the first key: maximum and sum per query, and weighted sum of values."""
    return tl.full([M], float("-inf"), tl.float32), tl.zeros([M], tl.float32), tl.zeros([M, D], tl.float32)


@triton.jit
def raw_scores(q, k, scale, softcap, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr):
    """q [m, dim] x k [dim, n]: exponents of 2 with a soft-cap; without one they are those times `scale`
    (`log2_scale`)."""
    scores = tl.dot(q, k, input_precision=PRECISION)
    if SOFTCAP:  # softcap * tanh(scores / softcap)
        scores = softcap * (2.0 * tl.sigmoid(2.0 * (scores * scale) / softcap) - 1.0) * LOG2_E
    return scores


@triton.jit
def add_tile(scores, scale, v, row_max, row_sum, acc, PRECISION: tl.constexpr):
    """Add a tile to the state of a chunk: scores [m, n] (-inf: masked), times `scale` exponents of 2; v [n, dim]."""
    new_max = tl.maximum(row_max, tl.max(scores, axis=1) * scale)
    base = tl.where(new_max == float("-inf"), 0.0, new_max)
    weights = tl.exp2(tl.fma(scores, scale, -base[:, None]))
    rescale = tl.exp2(row_max - base)
    row_sum = tl.fma(row_sum, rescale, tl.sum((weights + GRID) - GRID, axis=1))
    acc = tl.dot(weights.to(v.dtype), v, acc * rescale[:, None], input_precision=PRECISION)
    return new_max, row_sum, acc


@triton.jit
def add_chunk(row_max, row_sum, acc, chunk_max, chunk_sum, chunk_acc):
    """Add the state of the next chunk to that of the chunks before it."""
    new_max = tl.maximum(row_max, chunk_max)
    base = tl.where(new_max == float("-inf"), 0.0, new_max)
    old, new = tl.exp2(row_max - base), tl.exp2(chunk_max - base)
    row_sum = tl.fma(row_sum, old, chunk_sum * new)
    acc = tl.fma(acc, old[:, None], chunk_acc * new[:, None])
    return new_max, row_sum, acc


@triton.jit
def normalize(row_sum, acc):
    """The result. A query without keys, which only padding has, gets 0."""
    return acc / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]
