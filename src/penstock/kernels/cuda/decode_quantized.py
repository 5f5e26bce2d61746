"""Decode attention over quantized keys and values: as `decode_attention`, but turned round. Tiles of keys are the left
factor of tensor cores, and query heads are the columns, of which 8 are enough: half of the instructions for scores and
products, and half of the registers. Codes take instructions to unpack, and without that those bound it, not memory.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.attention_tiles import load_scales, load_units, log2_scale, soft_capped, variant
from penstock.kernels.cuda.decode_combine import combine_pieces
from penstock.kernels.cuda.kv_codes import (
    GAIN_LOG2,
    LARGEST_HALF,
    in_memory,
    num_parts,
    num_scales,
    tile_width,
    unpack,
)
from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait
from penstock.kernels.cuda.split_kv import SplitPlan, team_size
from penstock.kernels.interface import Pages


class Shape(NamedTuple):
    keys: int  # taken at a time
    warps: int
    stages: int


SHAPES = {2: Shape(64, 2, 3), 4: Shape(32, 4, 2)}  # by bytes per number of queries
LEAST_GROUP = 8  # columns
AT_ONCE = 4096  # numbers of partial results that are read at a time to be combined


def group(each: int) -> int:
    """Columns of a team, with `each` query heads per KV head."""
    return max(LEAST_GROUP, power_of_2(each))


@triton.jit
def _load_query(q, place, real, KEYS: tl.constexpr, DIM: tl.constexpr):
    """Queries as columns [dim, heads], divided like the keys."""
    SIZE: tl.constexpr = DIM // num_parts(KEYS)
    dim = tl.arange(0, tile_width(KEYS, DIM))
    parts = ()
    for part in tl.static_range(num_parts(KEYS)):
        at = place[None, :] * DIM + part * SIZE + dim[:, None]
        query = tl.load(q + at, mask=real[None, :] & (dim < SIZE)[:, None], other=0.0)
        if KEYS != "plain" and query.dtype != tl.float32:
            query = tl.clamp(query.to(tl.float32), -LARGEST_HALF, LARGEST_HALF).to(tl.float16)
        parts += (query,)  # type: ignore[assignment]
    return parts


@triton.jit
def _scores(query, k, scales, scale, KEYS: tl.constexpr, PRECISION: tl.constexpr):
    """k [n, dim] × query [dim, m], times the scales of the keys and `scale`."""
    if num_scales(KEYS) > 1:
        scores = tl.dot(k[0], query[0], input_precision=PRECISION) * (scales[0] * scale)[:, None]
        for part in tl.static_range(1, num_parts(KEYS)):
            scores += tl.dot(k[part], query[part], input_precision=PRECISION) * (scales[part] * scale)[:, None]
    else:
        scores = tl.dot(k[0], query[0], input_precision=PRECISION)
        for part in tl.static_range(1, num_parts(KEYS)):
            scores = tl.dot(k[part], query[part], scores, input_precision=PRECISION)
        scores = scores * (scales[0] * scale)[:, None] if num_scales(KEYS) == 1 else scores * scale
    return scores


@triton.jit
def _add_values(acc, rescale, weights, v, scales, VALUES: tl.constexpr, PRECISION: tl.constexpr):
    """acc [dim, m] rescaled, with v [dim, n] × weights [n, m] added."""
    added = ()
    for part in tl.static_range(num_parts(VALUES)):
        scaled = weights
        if num_scales(VALUES) > 0:
            scaled = weights * scales[part % num_scales(VALUES)][:, None]
        one = tl.dot(v[part], scaled.to(v[part].dtype), acc[part] * rescale[None, :], input_precision=PRECISION)
        added += (one,)  # type: ignore[assignment]
    return added


@triton.jit
def _store(to, place, real, acc, VALUES: tl.constexpr, DIM: tl.constexpr):
    SIZE: tl.constexpr = DIM // num_parts(VALUES)
    dim = tl.arange(0, tile_width(VALUES, DIM))
    for part in tl.static_range(num_parts(VALUES)):
        at = place[None, :] * DIM + part * SIZE + dim[:, None]
        tl.store(to + at, acc[part].to(to.dtype.element_ty), mask=real[None, :] & (dim < SIZE)[:, None])


@triton.jit(
    do_not_specialize=["table_width", "window"],
    do_not_specialize_on_alignment=["tables", "lengths", "runs", "pieces", "places", "arrived"],
)
def _attend(
    q,
    keys,
    values,
    key_scales,
    value_scales,
    tables,
    lengths,
    runs,
    pieces,
    places,
    arrived,
    out,
    parts,
    lse,
    table_width,
    scale,
    softcap,
    window,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    GROUP: tl.constexpr,
    N: tl.constexpr,
    AT_ONCE: tl.constexpr,
    D: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    heads_each: tl.constexpr = HEADS // KV_HEADS
    kv_head = tl.program_id(0)
    piece = tl.program_id(1)
    row = tl.load(pieces + 4 * piece, cache_modifier=".cg")
    begin = tl.load(pieces + 4 * piece + 1, cache_modifier=".cg")
    end = tl.load(pieces + 4 * piece + 2, cache_modifier=".cg")
    is_only = tl.load(pieces + 4 * piece + 3, cache_modifier=".cg")
    if begin >= end:
        wait(OVERLAP)
        return
    first = tl.load(places + 3 * row, cache_modifier=".cg")
    whole = tl.load(places + 3 * row + 1, cache_modifier=".cg")
    last = tl.load(places + 3 * row + 2, cache_modifier=".cg")
    length = tl.load(lengths + row)  # of the team's first row; the others have one key more each
    count = team_size(runs, row, True, GROUP // heads_each)
    table = tables + (row + count - 1).to(tl.int64) * table_width  # those of the others may not reach as far
    wait(OVERLAP)

    member = tl.arange(0, GROUP)
    mate = member // heads_each
    place = (row + mate).to(tl.int64) * HEADS + kv_head * heads_each + member % heads_each
    query = _load_query(q, place, mate < count, KEYS, DIM)
    WIDE: tl.constexpr = query[0].dtype == tl.float32
    if KEYS == "static":
        scale *= tl.load(key_scales)
    newest = tl.minimum(end, length + mate)
    oldest = length + mate - window

    row_max = tl.full([GROUP], float("-inf"), tl.float32)
    row_sum = tl.zeros([GROUP], tl.float32)
    acc = ()
    for _ in tl.static_range(num_parts(VALUES)):
        acc += (tl.zeros([tile_width(VALUES, DIM), GROUP], tl.float32),)  # type: ignore[assignment]
    for start in range(begin, end, N):
        position = start + tl.arange(0, N)
        there = tl.minimum(position, end - 1)
        if WINDOW:
            there = tl.maximum(there, tl.maximum(length - window, 0))
        there = there.to(tl.uint32)  # division by a block's size is a shift then
        block = tl.load(table + there // BLOCK_SIZE).to(tl.int64)  # pages are larger than 2^31 numbers
        offset = there % BLOCK_SIZE
        k = load_units(keys, block, offset, kv_head, KEYS, KV_HEADS, DIM, BLOCK_SIZE, 0)
        v = load_units(values, block, offset, kv_head, VALUES, KV_HEADS, DIM, BLOCK_SIZE, 1)
        key_scale = load_scales(key_scales, block, offset, kv_head, KEYS, KV_HEADS, BLOCK_SIZE)
        value_scale = load_scales(value_scales, block, offset, kv_head, VALUES, KV_HEADS, BLOCK_SIZE)
        scores = _scores(query, unpack(k, KEYS, WIDE), key_scale, scale, KEYS, PRECISION)
        if SOFTCAP:
            scores = soft_capped(scores, softcap)
        seen = position[:, None] < newest[None, :]
        if WINDOW:
            seen = seen & (position[:, None] >= oldest[None, :])
        scores = tl.where(seen, scores, float("-inf"))

        new_max = tl.maximum(row_max, tl.max(scores, axis=0))
        base = tl.where(new_max == float("-inf"), 0.0, new_max)  # -inf - -inf would be NaN
        rescale = tl.exp2(row_max - base)
        weights = tl.exp2(scores - (base - GAIN_LOG2)[None, :])
        row_sum = row_sum * rescale + tl.sum(weights, axis=0)
        acc = _add_values(acc, rescale, weights, unpack(v, VALUES, WIDE), value_scale, VALUES, PRECISION)
        row_max = new_max

    share = 1.0 / tl.where(row_sum == 0.0, 1.0, row_sum)  # a mate may see nothing of this piece
    if VALUES == "static":
        share *= tl.load(value_scales)
    result = ()
    for part in tl.static_range(num_parts(VALUES)):
        result += (acc[part] * share[None, :],)  # type: ignore[assignment]
    if is_only:
        _store(out, place, mate < count, result, VALUES, DIM)
    else:
        own = (piece * KV_HEADS + kv_head).to(tl.int64) * GROUP + member
        _store(parts, own, mate < count, result, VALUES, DIM)
        tl.store(lse + own, row_max + tl.log2(row_sum), mask=mate < count)
        tl.debug_barrier()
        counter = arrived + row * KV_HEADS + kv_head
        if tl.atomic_add(counter, 1, sem="acq_rel") == whole:
            tl.store(counter, 0)  # for the next layer
            for number in range(count):
                combine_pieces(
                    parts, lse, out, row, number, kv_head, first, whole, last,
                    HEADS, KV_HEADS, DIM, GROUP, AT_ONCE, D,
                )  # fmt: skip


_launch = Launcher(_attend)


def attend(
    q: Tensor,
    pages: Pages,
    tables: Tensor,
    lengths: Tensor,
    splits: SplitPlan,
    out: Tensor,
    *,
    scale: float,
    window: int,
    softcap: float,
) -> None:
    """See `decode_attention.decode_attention`."""
    heads, head_dim = q.shape[1:]
    kv_heads, shape = pages.keys.shape[2], SHAPES[q.element_size()]
    columns, pieces = group(heads // kv_heads), splits.pieces.shape[0]
    parts = torch.empty(pieces, kv_heads, columns, head_dim, dtype=torch.float32, device=q.device)
    lse = torch.empty(pieces, kv_heads, columns, dtype=torch.float32, device=q.device)
    numbers = (tables.stride(0), log2_scale(scale, softcap), softcap, window)
    _launch(
        (kv_heads, pieces, 1),
        q.dtype,
        (q, *in_memory(pages), tables, lengths, *splits, out, parts, lse, *numbers),
        (*variant(q, pages, window, softcap), columns, shape.keys, AT_ONCE, power_of_2(head_dim)),
        num_warps=shape.warps,
        num_stages=shape.stages,
    )
