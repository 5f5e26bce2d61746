"""Decode attention: flash attention of rows of one token over paged KV, with split KV (flash decoding, split-K).

The keys of a row are split into pieces, one per program (`split_kv` plans them, once per step and window). The program
that ends last combines the row's pieces: a launch of its own for that would take longer. The query heads that share a
KV head are the rows of one matrix, so that keys and values are read once.

That matrix has 16 rows at least, more than most models have query heads per KV head. So consecutive tokens of one
sequence form a team, as many as there is room for: the program of the first one computes all.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda import decode_quantized, split_kv
from penstock.kernels.cuda.attention_tiles import (
    load_query,
    log2_scale,
    no_values,
    normalised,
    online_softmax,
    score_tile,
    store_parts,
    variant,
)
from penstock.kernels.cuda.decode_combine import combine_pieces
from penstock.kernels.cuda.kv_codes import PLAIN, kinds
from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait
from penstock.kernels.cuda.split_kv import SplitPlan, team_size
from penstock.kernels.interface import Pages


class Shape(NamedTuple):
    keys: int  # taken at a time
    warps: int
    stages: int


SHAPES = {2: Shape(64, 2, 3), 4: Shape(32, 4, 2)}  # by bytes per number
LEAST_GROUP = 16  # rows of the matrix of queries: tensor cores take so many
# Numbers of partial results that are read at a time to be combined. Fewer would leave registers for more programs, and
# was slower all the same, with many rows too.
AT_ONCE = 8192


@triton.jit(
    do_not_specialize=["table_width", "window"],
    do_not_specialize_on_alignment=["tables", "lengths", "runs", "pieces", "places", "arrived"],
)
def _attend(
    q,
    keys,
    values,
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
    query = load_query(q, place, mate < count, "plain", DIM)

    row_max = tl.full([GROUP], float("-inf"), tl.float32)
    row_sum = tl.zeros([GROUP], tl.float32)
    acc = no_values(GROUP, "plain", DIM)
    for start in range(begin, end, N):
        position = start + tl.arange(0, N)
        there = tl.minimum(position, end - 1)
        if WINDOW:
            there = tl.maximum(there, tl.maximum(length - window, 0))
        scores, v, _ = score_tile(
            query, keys, values, None, None, table, there, kv_head, scale, softcap,
            "plain", "plain", KV_HEADS, DIM, BLOCK_SIZE, SOFTCAP, PRECISION,
        )  # fmt: skip
        seen = (position < end)[None, :] & (position[None, :] < length + mate[:, None])
        if WINDOW:
            seen = seen & (position[None, :] >= length + mate[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        row_max, row_sum, acc = online_softmax(scores, v, (), row_max, row_sum, acc, "plain", PRECISION)

    # A mate may see nothing of this piece.
    acc = normalised(acc, tl.where(row_sum == 0.0, 1.0, row_sum), None, "plain")
    if is_only:
        store_parts(out, place, mate < count, acc, "plain", DIM)
    else:
        part = (piece * KV_HEADS + kv_head).to(tl.int64) * GROUP + member
        store_parts(parts, part, mate < count, acc, "plain", DIM)
        tl.store(lse + part, row_max + tl.log2(row_sum), mask=mate < count)
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


def plan(q: Tensor, pages: Pages, lengths: Tensor, runs: Tensor | None, window: int) -> SplitPlan:
    """See `split_kv.plan_splits`."""
    kv_heads = pages.keys.shape[2]
    each = q.shape[1] // kv_heads
    if kinds(pages) == PLAIN:
        tile, group = SHAPES[q.element_size()].keys, _group(each)
    else:
        tile, group = decode_quantized.SHAPES[q.element_size()].keys, decode_quantized.group(each)
    return split_kv.plan_splits(q, kv_heads, lengths, runs, window, tile=tile, group=group)


def _group(each: int) -> int:
    """Rows of the matrix of queries, with `each` query heads per KV head."""
    return max(LEAST_GROUP, power_of_2(each))


def decode_attention(
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
    """q [rows, heads, head_dim] -> out [rows, heads * head_dim], one token per row."""
    if kinds(pages) != PLAIN:
        decode_quantized.attend(q, pages, tables, lengths, splits, out, scale=scale, window=window, softcap=softcap)
        return
    heads, head_dim = q.shape[1:]
    kv_heads, shape = pages.keys.shape[2], SHAPES[q.element_size()]
    group, pieces = _group(heads // kv_heads), splits.pieces.shape[0]
    parts = torch.empty(pieces, kv_heads, group, head_dim, dtype=torch.float32, device=q.device)
    lse = torch.empty(pieces, kv_heads, group, dtype=torch.float32, device=q.device)
    numbers = (tables.stride(0), log2_scale(scale, softcap), softcap, window)
    _launch(
        (kv_heads, pieces, 1),
        q.dtype,
        (q, pages.keys, pages.values, tables, lengths, *splits, out, parts, lse, *numbers),
        (*variant(q, pages, window, softcap)[:-2], group, shape.keys, AT_ONCE, power_of_2(head_dim)),  # all plain
        num_warps=shape.warps,
        num_stages=shape.stages,
    )
