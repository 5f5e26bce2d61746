"""Attention of rows of one token: the keys of a row are cut into pieces, each read by a program of its own, and the
query heads that share them stand together as the rows of one matrix, so that keys and values are read once.

That matrix has 16 rows at least, more than most models have heads to fill it with. So as many rows of the batch as have
room in it form a team if they are tokens of one sequence that follow each other: the first of them works for all.

Rows differ in length, and a long one must not be what all others wait for. So no piece is longer than a row is on
average; and where rows are few, pieces are of such a length that they keep the chip busy and leave it together. Who
reads what is worked out on the device, once per step (`cut`), and a launch has room for as many pieces as there can be:
one launch shape serves all lengths, which is what a CUDA graph needs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait
from penstock.kernels.cuda.tiles import accumulate, log2_scale, precision, scores_of, slots_of
from penstock.kernels.interface import Pages


class Shape(NamedTuple):
    keys: int  # taken at a time
    warps: int
    stages: int


SHAPES = {2: Shape(64, 2, 3), 4: Shape(32, 4, 2)}  # by bytes per number
SLOTS = 264  # programs that run at a time, on an H200
WAVES = 3  # of so many, at most, where rows are few
LEVELS = 8  # of length that are told apart where the order of pieces is concerned
COMBINERS = 1024  # programs that put pieces together, at most, where a row has few heads


class Cut(NamedTuple):
    """How the keys of a step's rows are divided. The pieces of a row but the last are of one length and follow each
    other; the last ones of all rows stand behind all of those."""

    runs: Tensor  # [rows] int32, see `interface.Batch`
    pieces: Tensor  # [pieces, 4] int32: row, first key, end of keys, whether it is its row's only one
    places: Tensor  # [rows, 3] int32: of the row that leads a team: its first piece, how many follow there, its last


@triton.jit
def _follow(runs, row, real, TEAM: tl.constexpr):
    """How many rows of the team there are from this one on, itself included."""
    return tl.minimum(tl.load(runs + row, mask=real, other=1), TEAM - row % TEAM)


@triton.jit
def _precede(runs, row, TEAM: tl.constexpr):
    """How many rows of its team are before this one."""
    index = tl.arange(0, triton.next_power_of_2(TEAM))
    run = tl.load(runs + row - row % TEAM + index, mask=index < row % TEAM, other=2)
    return row % TEAM - tl.max(tl.where(run == 1, index + 1, 0), axis=0)  # a run of 1 is the end of one


@triton.jit
def _even_share(tiles, total, KV_HEADS: tl.constexpr, SLOTS: tl.constexpr, WAVES: tl.constexpr):
    """The length of pieces, in tiles, at which one, two or three waves of programs take the least time; a program costs
    about as much as a tile by itself. 0: that many rows do not fit in."""
    longest = tl.max(tiles, axis=0)
    best = 0
    least = 1 << 30
    for wave in range(1, WAVES + 1):
        most = wave * SLOTS // KV_HEADS
        share = tl.maximum(tl.cdiv(total, most), 1)
        pieces = tl.sum(tl.cdiv(tiles, share), axis=0)
        while (pieces > most) & (share < longest):
            share = tl.minimum(share + tl.maximum(share // 8, 1), longest)
            pieces = tl.sum(tl.cdiv(tiles, share), axis=0)
        time = wave * (share + 1)
        if (pieces <= most) & (time < least):
            best = share
            least = time
    return best


@triton.jit(do_not_specialize=["rows", "window", "more"], do_not_specialize_on_alignment=["lengths", "runs"])
def _cut(
    lengths,
    runs,
    pieces,
    places,
    rows,
    window,
    more,
    KV_HEADS: tl.constexpr,
    WINDOW: tl.constexpr,
    TEAM: tl.constexpr,
    N: tl.constexpr,
    R: tl.constexpr,
    SLOTS: tl.constexpr,
    WAVES: tl.constexpr,
    LEVELS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """One program for all rows. At most `more` pieces come to those that are their row's last. The next launch begins
    when this one has ended: what is written here is read before `wait`."""
    wait(OVERLAP)
    row = tl.arange(0, R)
    real = row < rows
    length = tl.load(lengths + row, mask=real, other=0)
    before = tl.load(runs + row - 1, mask=real & (row > 0), other=1)
    leads = real & ((row % TEAM == 0) | (before == 1))
    first = tl.zeros([R], tl.int32)  # tile, as all that is counted here
    if WINDOW:
        first = tl.maximum(length - window, 0) // N
    newest = length + _follow(runs, row, real, TEAM) - 1
    tiles = tl.where(leads, tl.cdiv(newest, N) - first, 0)
    all_tiles = tl.sum(tiles, axis=0)
    share = tl.maximum(tl.cdiv(all_tiles, more), 1)
    if WAVES:
        even = _even_share(tiles, all_tiles, KV_HEADS, SLOTS, WAVES)
        share = tl.where(even > 0, even, share)
    whole = tl.where(tiles > 0, (tiles - 1) // share, 0)
    at = tl.cumsum(whole, axis=0) - whole
    total = tl.sum(whole, axis=0)
    # The last pieces: about the longest first, so that nobody is still at a long one when all others have ended.
    level = tl.maximum(((tiles - whole * share) * LEVELS - 1) // share, 0)
    order = total + tl.zeros([R], tl.int32)
    done = total
    for number in range(LEVELS):
        mine = (real & (level == LEVELS - 1 - number)).to(tl.int32)
        order = tl.where(mine == 1, done + tl.cumsum(mine, axis=0) - 1, order)
        done += tl.sum(mine, axis=0)

    last = pieces + 4 * order
    tl.store(last, row, mask=real)
    tl.store(last + 1, (first + whole * share) * N, mask=real)
    tl.store(last + 2, tl.where(leads, newest, 0), mask=real)
    tl.store(last + 3, (whole == 0).to(tl.int32), mask=real)
    for number in range(tl.max(whole, axis=0)):
        here = pieces + 4 * (at + number)
        some = number < whole
        tl.store(here, row, mask=some)
        tl.store(here + 1, (first + number * share) * N, mask=some)
        tl.store(here + 2, (first + number * share + share) * N, mask=some)
        tl.store(here + 3, tl.zeros([R], tl.int32), mask=some)
    for number in range(total + rows, rows + more, R):  # nobody's: nothing to read
        tl.store(pieces + 4 * (number + row) + 1, tl.zeros([R], tl.int32), mask=number + row < rows + more)
        tl.store(pieces + 4 * (number + row) + 2, tl.zeros([R], tl.int32), mask=number + row < rows + more)
    tl.store(places + 3 * row, at, mask=real)
    tl.store(places + 3 * row + 1, whole, mask=real)
    tl.store(places + 3 * row + 2, order, mask=real)


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
    count = _follow(runs, row, True, GROUP // heads_each)
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
        there = tl.minimum(position, end - 1)  # what is beyond is not seen: another is read in its place
        if WINDOW:
            there = tl.maximum(there, length - window)
        at = slots_of(table, there, there >= 0, BLOCK_SIZE) * (KV_HEADS * DIM) + kv_head * DIM
        k = tl.load(keys + at[None, :] + dim[:, None], mask=(dim < DIM)[:, None], other=0.0)
        v = tl.load(values + at[:, None] + dim[None, :], mask=(dim < DIM)[None, :], other=0.0)
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
    mate = _precede(runs, row, GROUP // heads_each)
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


_launch_cut, _launch_attend, _launch_combine = Launcher(_cut), Launcher(_attend), Launcher(_combine)


def cut(q: Tensor, kv_heads: int, lengths: Tensor, runs: Tensor | None, window: int) -> Cut:
    """Of as many rows as q has, [rows, heads, head_dim]."""
    rows, more = q.shape[0], _more(q.shape[0], kv_heads)
    if runs is None:
        runs = torch.ones(rows, dtype=torch.int32, device=q.device)
    pieces = torch.empty(rows + more, 4, dtype=torch.int32, device=q.device)
    places = torch.empty(rows, 3, dtype=torch.int32, device=q.device)
    team = _group(q, kv_heads) // (q.shape[1] // kv_heads)
    padded, waves = max(power_of_2(rows), 64), WAVES if _are_few(rows, kv_heads) else 0
    _launch_cut(
        (1, 1, 1),
        q.dtype,
        (lengths, runs, pieces, places, rows, window, more),
        (kv_heads, window > 0, team, SHAPES[q.element_size()].keys, padded, SLOTS, waves, LEVELS),
        num_warps=4,
    )
    return Cut(runs, pieces, places)


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
    shape, group, pieces = SHAPES[q.element_size()], _group(q, kv_heads), cut.pieces.shape[0]
    padded = power_of_2(head_dim)
    parts = torch.empty(pieces, kv_heads, group, head_dim, dtype=torch.float32, device=q.device)
    masses = torch.empty(pieces, kv_heads, group, dtype=torch.float32, device=q.device)
    numbers = (tables.stride(0), log2_scale(scale, softcap), softcap, window)
    does = (window > 0, softcap > 0.0, precision(q))
    _launch_attend(
        (kv_heads, pieces, 1),
        q.dtype,
        (q, pages.keys, pages.values, tables, lengths, cut.runs, cut.pieces, out, parts, masses, *numbers),
        (heads, kv_heads, head_dim, block_size, *does, group, shape.keys, padded),
        num_warps=shape.warps,
        num_stages=shape.stages,
    )
    some = power_of_2(power_of_2(rows) * heads // COMBINERS)
    at_once = min(max(128 // power_of_2(rows), 4), 64)
    _launch_combine(
        (rows, -(-heads // some), 1),
        q.dtype,
        (parts, masses, cut.runs, cut.places, out),
        (heads, kv_heads, head_dim, group, some, at_once, padded),
        num_warps=1 if some * at_once <= 4 else 4,
    )


def _group(q: Tensor, kv_heads: int) -> int:
    """Rows of the matrix of queries."""
    return max(16, power_of_2(q.shape[1] // kv_heads))


def _are_few(rows: int, kv_heads: int) -> bool:
    return power_of_2(rows) * kv_heads <= 2 * SLOTS


def _more(rows: int, kv_heads: int) -> int:
    """How many pieces there may be beside one per row."""
    return max(rows, WAVES * SLOTS // kv_heads - rows) if _are_few(rows, kv_heads) else rows
