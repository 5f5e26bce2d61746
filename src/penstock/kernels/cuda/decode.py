"""Attention of rows of one token: the keys of a row are split over several programs, and the query heads that share
them stand together as the rows of one matrix, so that keys and values are read once.

That matrix has 16 rows at least, more than most models have heads to fill it with. So as many rows of the batch as have
room in it form a team if they are tokens of one sequence that follow each other: the first of them works for all.

How many keys a split takes follows from the row's length on the device; the number of splits depends on the number of
rows alone. So one launch shape serves all lengths, which is what a CUDA graph needs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.launch import Launcher, let_next_begin, wait
from penstock.kernels.cuda.tiles import (
    accumulate,
    combine,
    log2_scale,
    precision,
    scores_of,
    slots_of,
    splits_for,
)
from penstock.kernels.interface import Pages


class Shape(NamedTuple):
    keys: int  # taken at a time
    warps: int
    stages: int


SHAPES = {2: Shape(64, 2, 3), 4: Shape(32, 4, 2)}  # by bytes per number


@triton.jit
def _follow(runs, row, RUNS: tl.constexpr, MOST: tl.constexpr):
    """How many rows of the team there are from this one on, itself included."""
    count = 1
    if RUNS:
        count = tl.minimum(tl.load(runs + row), MOST - row % MOST)
    return count


@triton.jit
def _precede(runs, row, RUNS: tl.constexpr, MOST: tl.constexpr):
    """How many rows of its team are before this one."""
    count = 0
    if RUNS:
        index = tl.arange(0, triton.next_power_of_2(MOST))
        run = tl.load(runs + row - row % MOST + index, mask=index < row % MOST, other=2)
        count = row % MOST - tl.max(tl.where(run == 1, index + 1, 0), axis=0)  # a run of 1 is the end of one
    return count


@triton.jit(
    do_not_specialize=["table_width", "window", "splits"], do_not_specialize_on_alignment=["tables", "lengths", "runs"]
)
def _attend(
    q,
    keys,
    values,
    tables,
    lengths,
    runs,
    out,
    masses,
    table_width,
    scale,
    softcap,
    window,
    splits,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    RUNS: tl.constexpr,
    GROUP: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    heads_each: tl.constexpr = HEADS // KV_HEADS
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(lengths + row)  # of the team's first row; the others have one key more each
    count = _follow(runs, row, RUNS, GROUP // heads_each)
    oldest = 0
    if WINDOW:
        oldest = tl.maximum(length - window, 0)
    newest = length + count - 1
    share = tl.cdiv(tl.cdiv(newest, N) - oldest // N, splits)
    begin = (oldest // N + split * share) * N
    end = tl.minimum(begin + share * N, newest)
    if RUNS:
        leads = (row % (GROUP // heads_each) == 0) | (tl.load(runs + row - 1, mask=row > 0, other=1) == 1)
        end = tl.where(leads, end, begin)
    table = tables + (row + count - 1).to(tl.int64) * table_width  # those of the others may not reach as far
    wait(OVERLAP)
    if begin >= end:
        return

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
        exists = (position >= oldest) & (position < end)
        at = slots_of(table, position, exists, BLOCK_SIZE) * (KV_HEADS * DIM) + kv_head * DIM
        k = tl.load(keys + at[None, :] + dim[:, None], mask=exists[None, :] & (dim < DIM)[:, None], other=0.0)
        v = tl.load(values + at[:, None] + dim[None, :], mask=exists[:, None] & (dim < DIM)[None, :], other=0.0)
        scores = scores_of(query, k, scale, softcap, SOFTCAP, PRECISION)
        seen = exists[None, :] & (position[None, :] < length + mate[:, None])
        if WINDOW:
            seen = seen & (position[None, :] >= length + mate[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        best, mass, mixed = accumulate(scores, v, best, mass, mixed, PRECISION)

    mixed = mixed / tl.where(mass == 0.0, 1.0, mass)[:, None]  # a mate may see nothing of this split
    part = place * splits + split
    tl.store(out + part[:, None] * DIM + dim[None, :], mixed.to(out.dtype.element_ty), mask=real)
    if SPLIT:
        tl.store(masses + part, best + tl.log2(mass), mask=mate < count)


@triton.jit(do_not_specialize=["window", "splits"], do_not_specialize_on_alignment=["lengths", "runs"])
def _combine(
    parts,
    masses,
    lengths,
    runs,
    out,
    window,
    splits,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    RUNS: tl.constexpr,
    MOST: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    row = tl.program_id(0)
    length = tl.load(lengths + row)
    oldest = 0
    if WINDOW:
        oldest = tl.maximum(length - _precede(runs, row, RUNS, MOST) - window, 0)
    tiles = tl.cdiv(length + _follow(runs, row, RUNS, MOST) - 1, N) - oldest // N
    used = tl.cdiv(tiles, tl.cdiv(tiles, splits))
    wait(OVERLAP)
    place = row.to(tl.int64) * HEADS + tl.program_id(1)
    mixed = combine(parts, masses, place, splits, used, DIM, D, S)
    dim = tl.arange(0, D)
    tl.store(out + place * DIM + dim, mixed.to(out.dtype.element_ty), mask=dim < DIM)


_launch_attend, _launch_combine = Launcher(_attend), Launcher(_combine)


def decode(
    q: Tensor,
    pages: Pages,
    tables: Tensor,
    lengths: Tensor,
    runs: Tensor | None,
    out: Tensor,
    *,
    scale: float,
    window: int,
    softcap: float,
) -> None:
    """q [rows, heads, head_dim] -> out [rows, heads * head_dim], one token per row."""
    rows, heads, head_dim = q.shape
    block_size, kv_heads = pages.keys.shape[1:3]
    shape = SHAPES[q.element_size()]
    splits = splits_for(rows * kv_heads)
    padded, group = triton.next_power_of_2(head_dim), max(16, triton.next_power_of_2(heads // kv_heads))
    parts, masses = out, out
    if splits > 1:
        parts = torch.empty(rows, heads, splits, head_dim, dtype=torch.float32, device=q.device)
        masses = torch.empty(rows, heads, splits, dtype=torch.float32, device=q.device)
    by_row = (lengths, lengths if runs is None else runs)
    numbers = (tables.stride(0), log2_scale(scale, softcap), softcap, window, splits)
    does = (splits > 1, window > 0, softcap > 0.0, precision(q), runs is not None)
    _launch_attend(
        (rows, kv_heads, splits),
        q.dtype,
        (q, pages.keys, pages.values, tables, *by_row, parts, masses, *numbers),
        (heads, kv_heads, head_dim, block_size, *does, group, shape.keys, padded),
        num_warps=shape.warps,
        num_stages=shape.stages,
    )
    if splits > 1:
        team = group // (heads // kv_heads)
        _launch_combine(
            (rows, heads, 1),
            q.dtype,
            (parts, masses, *by_row, out, window, splits),
            (heads, head_dim, window > 0, runs is not None, team, shape.keys, padded, triton.next_power_of_2(splits)),
            num_warps=1 if splits <= 4 else 4,
        )
