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

from penstock.kernels.cuda.attention_tiles import dot_precision, load_kv_tile, log2_scale, online_softmax, qk_scores
from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait
from penstock.kernels.cuda.split_kv import TILE, SplitPlan, team_rows, team_size
from penstock.kernels.interface import Pages


class Shape(NamedTuple):
    warps: int
    stages: int


SHAPES = {2: Shape(2, 3), 4: Shape(4, 2)}  # by bytes per number
# Numbers of partial results that are read at a time to be combined. Fewer would leave registers for more programs, and
# was slower all the same, with many rows too.
AT_ONCE = 8192


@triton.jit
def _combine(
    parts,
    lse,
    out,
    row,
    mate,
    kv_head,
    first,
    whole,
    last,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    GROUP: tl.constexpr,
    AT_ONCE: tl.constexpr,
    D: tl.constexpr,
):
    """Combine the pieces of one row of a team, for the heads of one KV head, S pieces at a time."""
    heads_each: tl.constexpr = HEADS // KV_HEADS
    H: tl.constexpr = triton.next_power_of_2(heads_each)
    S: tl.constexpr = max(AT_ONCE // (H * D), 1)
    head = tl.arange(0, H)
    dim = tl.arange(0, D)
    row_max = tl.full([H], float("-inf"), tl.float32)
    row_sum = tl.zeros([H], tl.float32)
    acc = tl.zeros([H, D], tl.float32)
    for start in range(0, whole + 1, S):
        number = start + tl.arange(0, S)
        piece = tl.where(number < whole, first + number, last).to(tl.int64)
        part = (piece[None, :] * KV_HEADS + kv_head) * GROUP + mate * heads_each + head[:, None]
        real = (head < heads_each)[:, None] & (number <= whole)[None, :]
        places = parts + part[:, :, None] * DIM + dim[None, None, :]
        values = tl.load(places, mask=real[:, :, None] & (dim < DIM), other=0.0, cache_modifier=".cg")
        logs = tl.load(lse + part, mask=real, other=float("-inf"), cache_modifier=".cg")
        new_max = tl.maximum(row_max, tl.max(logs, axis=1))
        base = tl.where(new_max == float("-inf"), 0.0, new_max)
        weights = tl.exp2(logs - base[:, None])
        rescale = tl.exp2(row_max - base)
        row_sum = row_sum * rescale + tl.sum(weights, axis=1)
        acc = acc * rescale[:, None] + tl.sum(values * weights[:, :, None], axis=1)
        row_max = new_max
    acc = acc / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]
    place = (row + mate).to(tl.int64) * HEADS + kv_head * heads_each + head
    real = (head < heads_each)[:, None] & (dim < DIM)[None, :]
    tl.store(out + place[:, None] * DIM + dim[None, :], acc.to(out.dtype.element_ty), mask=real)


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
    dim = tl.arange(0, D)
    real = (mate < count)[:, None] & (dim < DIM)[None, :]
    query = tl.load(q + place[:, None] * DIM + dim[None, :], mask=real, other=0.0)

    row_max = tl.full([GROUP], float("-inf"), tl.float32)
    row_sum = tl.zeros([GROUP], tl.float32)
    acc = tl.zeros([GROUP, D], tl.float32)
    for start in range(begin, end, N):
        position = start + tl.arange(0, N)
        there = tl.minimum(position, end - 1)
        if WINDOW:
            there = tl.maximum(there, tl.maximum(length - window, 0))
        k, v = load_kv_tile(keys, values, table, there, kv_head, KV_HEADS, DIM, BLOCK_SIZE, D)
        scores = qk_scores(query, k, scale, softcap, SOFTCAP, PRECISION)
        seen = (position < end)[None, :] & (position[None, :] < length + mate[:, None])
        if WINDOW:
            seen = seen & (position[None, :] >= length + mate[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        row_max, row_sum, acc = online_softmax(scores, v, row_max, row_sum, acc, PRECISION)

    acc = acc / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]  # a mate may see nothing of this piece
    if is_only:
        tl.store(out + place[:, None] * DIM + dim[None, :], acc.to(out.dtype.element_ty), mask=real)
    else:
        part = (piece * KV_HEADS + kv_head).to(tl.int64) * GROUP + member
        tl.store(parts + part[:, None] * DIM + dim[None, :], acc, mask=real)
        tl.store(lse + part, row_max + tl.log2(row_sum), mask=mate < count)
        tl.debug_barrier()
        counter = arrived + row * KV_HEADS + kv_head
        if tl.atomic_add(counter, 1, sem="acq_rel") == whole:
            tl.store(counter, 0)  # for the next layer
            for number in range(count):
                _combine(
                    parts, lse, out, row, number, kv_head, first, whole, last,
                    HEADS, KV_HEADS, DIM, GROUP, AT_ONCE, D,
                )  # fmt: skip


_launch = Launcher(_attend)


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
    heads, head_dim = q.shape[1:]
    block_size, kv_heads = pages.keys.shape[1:3]
    shape, group, pieces = SHAPES[q.element_size()], team_rows(heads, kv_heads), splits.pieces.shape[0]
    padded = power_of_2(head_dim)
    parts = torch.empty(pieces, kv_heads, group, head_dim, dtype=torch.float32, device=q.device)
    lse = torch.empty(pieces, kv_heads, group, dtype=torch.float32, device=q.device)
    numbers = (tables.stride(0), log2_scale(scale, softcap), softcap, window)
    does = (window > 0, softcap > 0.0, dot_precision(q))
    _launch(
        (kv_heads, pieces, 1),
        q.dtype,
        (q, pages.keys, pages.values, tables, lengths, *splits, out, parts, lse, *numbers),
        (heads, kv_heads, head_dim, block_size, *does, group, TILE[q.element_size()], AT_ONCE, padded),
        num_warps=shape.warps,
        num_stages=shape.stages,
    )
