"""Attention of rows of one token. The keys of a row are cut into pieces, each read by a program of its own (`_attend`),
and what the pieces give is put together (`_combine`). The query heads that share a KV head are the rows of one matrix,
so that keys and values are read once.

That matrix has 16 rows at least, more than most models have query heads per KV head. So consecutive tokens of one
sequence form a team, as many of them as there is room for: the program of the first one works for all.

Where the keys are cut is worked out by `cut`, once per step and window, before the first layer that needs it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.cut import TILE, Cut, follow, precede, team_rows
from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait
from penstock.kernels.cuda.tiles import accumulate, log2_scale, precision, scores_of, tile_of
from penstock.kernels.interface import Pages


class Shape(NamedTuple):
    warps: int
    stages: int


SHAPES = {2: Shape(2, 3), 4: Shape(4, 2)}  # by bytes per number
COMBINERS = 2048  # most programs of `_combine`: if rows and heads are more, one takes several heads


@triton.jit(
    do_not_specialize=["table_width", "window"], do_not_specialize_on_alignment=["tables", "lengths", "runs", "pieces"]
)
def _attend(
    q,
    keys,
    values,
    tables,
    lengths,
    runs,
    pieces,
    out,
    parts,
    masses,
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
    alone = tl.load(pieces + 4 * piece + 3, cache_modifier=".cg")
    if begin >= end:
        wait(OVERLAP)
        return
    length = tl.load(lengths + row)  # of the team's first row; the others have one key more each
    count = follow(runs, row, True, GROUP // heads_each)
    table = tables + (row + count - 1).to(tl.int64) * table_width  # those of the others may not reach as far
    wait(OVERLAP)

    member = tl.arange(0, GROUP)
    mate = member // heads_each
    place = (row + mate).to(tl.int64) * HEADS + kv_head * heads_each + member % heads_each
    dim = tl.arange(0, D)
    real = (mate < count)[:, None] & (dim < DIM)[None, :]
    query = tl.load(q + place[:, None] * DIM + dim[None, :], mask=real, other=0.0)

    best = tl.full([GROUP], float("-inf"), tl.float32)
    mass = tl.zeros([GROUP], tl.float32)
    mixed = tl.zeros([GROUP, D], tl.float32)
    for start in range(begin, end, N):
        position = start + tl.arange(0, N)
        there = tl.minimum(position, end - 1)
        if WINDOW:
            there = tl.maximum(there, tl.maximum(length - window, 0))
        k, v = tile_of(keys, values, table, there, kv_head, KV_HEADS, DIM, BLOCK_SIZE, D)
        scores = scores_of(query, k, scale, softcap, SOFTCAP, PRECISION)
        seen = (position < end)[None, :] & (position[None, :] < length + mate[:, None])
        if WINDOW:
            seen = seen & (position[None, :] >= length + mate[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        best, mass, mixed = accumulate(scores, v, best, mass, mixed, PRECISION)

    mixed = mixed / tl.where(mass == 0.0, 1.0, mass)[:, None]  # a mate may see nothing of this piece
    if alone:
        tl.store(out + place[:, None] * DIM + dim[None, :], mixed.to(out.dtype.element_ty), mask=real)
    else:
        part = (piece * KV_HEADS + kv_head).to(tl.int64) * GROUP + member
        tl.store(parts + part[:, None] * DIM + dim[None, :], mixed, mask=real)
        tl.store(masses + part, best + tl.log2(mass), mask=mate < count)


@triton.jit(do_not_specialize_on_alignment=["runs", "places"])
def _combine(
    parts,
    masses,
    runs,
    places,
    out,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    GROUP: tl.constexpr,
    SOME: tl.constexpr,
    S: tl.constexpr,
    D: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Some heads of a row, S pieces at a time."""
    let_next_begin(OVERLAP)
    heads_each: tl.constexpr = HEADS // KV_HEADS
    row = tl.program_id(0)
    mate = precede(runs, row, GROUP // heads_each)
    first = tl.load(places + 3 * (row - mate), cache_modifier=".cg")
    whole = tl.load(places + 3 * (row - mate) + 1, cache_modifier=".cg")
    last = tl.load(places + 3 * (row - mate) + 2, cache_modifier=".cg")
    wait(OVERLAP)
    if whole == 0:
        return
    head = tl.program_id(1) * SOME + tl.arange(0, SOME)
    member = mate * heads_each + head % heads_each
    dim = tl.arange(0, D)
    best = tl.full([SOME], float("-inf"), tl.float32)
    mass = tl.zeros([SOME], tl.float32)
    mixed = tl.zeros([SOME, D], tl.float32)
    for start in range(0, whole + 1, S):
        number = start + tl.arange(0, S)
        piece = tl.where(number < whole, first + number, last).to(tl.int64)
        part = (piece[None, :] * KV_HEADS + (head // heads_each)[:, None]) * GROUP + member[:, None]
        real = (head < HEADS)[:, None] & (number <= whole)[None, :]
        values = tl.load(
            parts + part[:, :, None] * DIM + dim[None, None, :], mask=real[:, :, None] & (dim < DIM), other=0.0
        )
        logs = tl.load(masses + part, mask=real, other=float("-inf"))
        higher = tl.maximum(best, tl.max(logs, axis=1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(logs - base[:, None])
        shrink = tl.exp2(best - base)
        mass = mass * shrink + tl.sum(weights, axis=1)
        mixed = mixed * shrink[:, None] + tl.sum(values * weights[:, :, None], axis=1)
        best = higher
    mixed = mixed / tl.where(mass == 0.0, 1.0, mass)[:, None]
    place = row.to(tl.int64) * HEADS + head
    real = (head < HEADS)[:, None] & (dim < DIM)[None, :]
    tl.store(out + place[:, None] * DIM + dim[None, :], mixed.to(out.dtype.element_ty), mask=real)


_launch_attend, _launch_combine = Launcher(_attend), Launcher(_combine)


def decode(
    q: Tensor,
    pages: Pages,
    tables: Tensor,
    lengths: Tensor,
    cut: Cut,
    out: Tensor,
    *,
    scale: float,
    window: int,
    softcap: float,
) -> None:
    """q [rows, heads, head_dim] -> out [rows, heads * head_dim], one token per row."""
    rows, heads, head_dim = q.shape
    block_size, kv_heads = pages.keys.shape[1:3]
    shape, group, pieces = SHAPES[q.element_size()], team_rows(heads, kv_heads), cut.pieces.shape[0]
    padded = power_of_2(head_dim)
    parts = torch.empty(pieces, kv_heads, group, head_dim, dtype=torch.float32, device=q.device)
    masses = torch.empty(pieces, kv_heads, group, dtype=torch.float32, device=q.device)
    numbers = (tables.stride(0), log2_scale(scale, softcap), softcap, window)
    does = (window > 0, softcap > 0.0, precision(q))
    _launch_attend(
        (kv_heads, pieces, 1),
        q.dtype,
        (q, pages.keys, pages.values, tables, lengths, cut.runs, cut.pieces, out, parts, masses, *numbers),
        (heads, kv_heads, head_dim, block_size, *does, group, TILE[q.element_size()], padded),
        num_warps=shape.warps,
        num_stages=shape.stages,
    )
    some, at_once = _share(rows, heads)
    _launch_combine(
        (rows, -(-heads // some), 1),
        q.dtype,
        (parts, masses, cut.runs, cut.places, out),
        (heads, kv_heads, head_dim, group, some, at_once, padded),
        num_warps=1 if some * at_once <= 4 else 4,
    )


def _share(rows: int, heads: int) -> tuple[int, int]:
    """How many heads a program of `_combine` takes, and how many of their pieces at a time, about as many as there are
    if lengths are alike. In few steps: a variant more is a kernel more to compile."""
    some = 1
    while power_of_2(rows) * heads > some * COMBINERS:
        some *= 4
    return some, 64 if rows <= 4 else 16 if rows <= 16 else 4
