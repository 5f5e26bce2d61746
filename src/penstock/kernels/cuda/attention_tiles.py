"""Flash attention over paged KV, as the Triton functions that the attention kernels share: load a tile of keys and
values, score it against a tile of queries, add it to an online softmax, and combine the partial results of split KV.

The state of an online softmax, per query: `row_max` and `row_sum` of the exponentials so far, and `acc`, their weighted
sum of values. Exponents are of 2. Partial results are stored normalised, with the logarithm of their sum (`lse`).

Dimensions lie in one tile, or in several neighbouring ones if keys or values are quantized (`kv_codes`): queries are
divided like the keys, and `acc` like the values. All of these are tuples of tiles.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.kv_codes import (
    GAIN_LOG2,
    INT4_SCALE,
    LARGEST_HALF,
    kinds,
    num_parts,
    num_scales,
    tile_width,
    unpack,
)
from penstock.kernels.interface import Pages

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


def variant(q: Tensor, pages: Pages, window: int, softcap: float) -> tuple[int | bool | str, ...]:
    """The constants that all attention kernels have, in the order they have them."""
    heads, head_dim = q.shape[1:]
    block_size, kv_heads = pages.keys.shape[1:3]
    does = (window > 0, softcap > 0.0, dot_precision(q))
    return (heads, kv_heads, head_dim, block_size, *does, *kinds(pages))


@triton.jit
def load_query(q, at, real, KEYS: tl.constexpr, DIM: tl.constexpr):
    """Queries at heads `at`, divided like the keys."""
    PARTS: tl.constexpr = num_parts(KEYS)
    SIZE: tl.constexpr = DIM // PARTS
    dim = tl.arange(0, tile_width(KEYS, DIM))
    parts = ()
    for part in tl.static_range(PARTS):
        place = at[:, None] * DIM + part * SIZE + dim[None, :]
        query = tl.load(q + place, mask=real[:, None] & (dim < SIZE)[None, :], other=0.0)
        if KEYS != "plain" and query.dtype != tl.float32:
            query = tl.clamp(query.to(tl.float32), -LARGEST_HALF, LARGEST_HALF).to(tl.float16)
        parts += (query,)  # type: ignore[assignment]
    return parts


@triton.jit
def no_values(M: tl.constexpr, VALUES: tl.constexpr, DIM: tl.constexpr):
    """`acc` of M queries that have seen nothing."""
    parts = ()
    for _ in tl.static_range(num_parts(VALUES)):
        parts += (tl.zeros([M, tile_width(VALUES, DIM)], tl.float32),)  # type: ignore[assignment]
    return parts


@triton.jit
def load_units(
    pages,
    block,
    offset,
    kv_head,
    KIND: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    AXIS: tl.constexpr,
):
    """Of one KV head at n slots, which are along AXIS: [n, units of a head] or the reverse, plain numbers likewise."""
    SIZE: tl.constexpr = DIM // num_parts(KIND)
    if KIND != "plain":
        pages = pages.to(tl.pointer_type(tl.int16), bitcast=True)
    at = (block * BLOCK_SIZE + offset) * (KV_HEADS * SIZE) + kv_head * SIZE
    dim = tl.arange(0, tile_width(KIND, DIM))
    if AXIS == 0:
        units = tl.load(pages + at[:, None] + dim[None, :], mask=(dim < SIZE)[None, :], other=0)
    else:
        units = tl.load(pages + at[None, :] + dim[:, None], mask=(dim < SIZE)[:, None], other=0)
    return units


@triton.jit
def load_scales(scales, block, offset, kv_head, KIND: tl.constexpr, KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Those [n] of each tile that n units unpack to; none, if the kind has none for each token."""
    loaded = ()
    for number in tl.static_range(num_scales(KIND)):
        at = ((block * KV_HEADS + kv_head) * num_scales(KIND) + number) * BLOCK_SIZE + offset
        scale = tl.load(scales + at)
        if KIND == "int4":
            scale = scale.to(tl.float32) * INT4_SCALE
        loaded += (scale,)  # type: ignore[assignment]
    return loaded


@triton.jit
def score_tile(
    query,
    keys,
    values,
    key_scales,
    value_scales,
    table,
    position,
    kv_head,
    scale,
    softcap,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Keys and values of one KV head at n positions of a row, found through its block table: the scores of m queries
    [m, n] as exponents of 2, and the values [n, dim] with their scales. `scale` is `log2_scale`. All positions must
    exist: beyond the end the caller repeats the last one and masks its score, which is faster than masked loads."""
    WIDE: tl.constexpr = query[0].dtype == tl.float32
    block = tl.load(table + position // BLOCK_SIZE).to(tl.int64)  # pages are larger than 2^31 numbers
    offset = position % BLOCK_SIZE
    k = load_units(keys, block, offset, kv_head, KEYS, KV_HEADS, DIM, BLOCK_SIZE, 1)
    v = load_units(values, block, offset, kv_head, VALUES, KV_HEADS, DIM, BLOCK_SIZE, 0)
    value_scale = load_scales(value_scales, block, offset, kv_head, VALUES, KV_HEADS, BLOCK_SIZE)
    key_scale = load_scales(key_scales, block, offset, kv_head, KEYS, KV_HEADS, BLOCK_SIZE)
    scores = _qk_scores(query, unpack(k, KEYS, WIDE), key_scale, KEYS, PRECISION) * scale
    if SOFTCAP:
        scores = soft_capped(scores, softcap)
    return scores, unpack(v, VALUES, WIDE), value_scale


@triton.jit
def soft_capped(scores, softcap):
    """softcap * tanh(scores / softcap), as exponents of 2."""
    return softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0) * LOG2_E


@triton.jit
def _qk_scores(q, k, scales, KEYS: tl.constexpr, PRECISION: tl.constexpr):
    """q [m, dim] × k [dim, n], times the scales [n] of the keys."""
    scores = tl.dot(q[0], k[0], input_precision=PRECISION)
    if num_scales(KEYS) > 1:
        scores = scores * scales[0][None, :]
        for part in tl.static_range(1, num_parts(KEYS)):
            scores += tl.dot(q[part], k[part], input_precision=PRECISION) * scales[part][None, :]
    else:
        for part in tl.static_range(1, num_parts(KEYS)):
            scores = tl.dot(q[part], k[part], scores, input_precision=PRECISION)
        if num_scales(KEYS) == 1:
            scores = scores * scales[0][None, :]
    return scores


@triton.jit
def online_softmax(scores, v, scales, row_max, row_sum, acc, VALUES: tl.constexpr, PRECISION: tl.constexpr):
    """Add a tile to the state: scores [m, n] (-inf: masked), v [n, dim] with `scales` [n]; gives the new state. A query
    that has seen no key yet has row_max = -inf, and -inf - -inf would be NaN: hence `base`."""
    new_max = tl.maximum(row_max, tl.max(scores, axis=1))
    base = tl.where(new_max == float("-inf"), 0.0, new_max)
    if num_scales(VALUES) > 0:
        weights = tl.exp2(scores - (base - GAIN_LOG2)[:, None])
    else:
        weights = tl.exp2(scores - base[:, None])
    rescale = tl.exp2(row_max - base)
    row_sum = row_sum * rescale + tl.sum(weights, axis=1)
    new_acc = ()
    for part in tl.static_range(num_parts(VALUES)):
        scaled = weights
        if num_scales(VALUES) > 0:
            scaled = weights * scales[part % num_scales(VALUES)][None, :]
        one = tl.dot(scaled.to(v[part].dtype), v[part], acc[part] * rescale[:, None], input_precision=PRECISION)
        new_acc += (one,)  # type: ignore[assignment]
    return new_max, row_sum, new_acc


@triton.jit
def normalised(acc, row_sum, value_scales, VALUES: tl.constexpr):
    """The result of attention."""
    if VALUES == "static":
        row_sum = row_sum / tl.load(value_scales)
    parts = ()
    for part in tl.static_range(num_parts(VALUES)):
        parts += (acc[part] / row_sum[:, None],)  # type: ignore[assignment]
    return parts


@triton.jit
def store_parts(to, at, real, acc, VALUES: tl.constexpr, DIM: tl.constexpr):
    """`acc` to heads `at`."""
    PARTS: tl.constexpr = num_parts(VALUES)
    SIZE: tl.constexpr = DIM // PARTS
    dim = tl.arange(0, tile_width(VALUES, DIM))
    for part in tl.static_range(PARTS):
        place = at[:, None] * DIM + part * SIZE + dim[None, :]
        tl.store(to + place, acc[part].to(to.dtype.element_ty), mask=real[:, None] & (dim < SIZE)[None, :])


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
