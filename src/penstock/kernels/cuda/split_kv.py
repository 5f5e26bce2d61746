"""Split KV (split-K, as in flash decoding): how the keys of a decode step are divided among the programs of
`decode_attention`, planned on the device once per step.

Rows differ in length, and no program should be left with a long row when all others have ended. So a piece is at most
as long as the average row, or shorter where rows are few, so that all multiprocessors are busy; and long pieces come
first. The grid has room for as many pieces as any lengths need: CUDA graphs have a fixed grid.

Rows that are consecutive tokens of one sequence form teams: the program of the first one reads for all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.attention_tiles import MIN_PROGRAMS
from penstock.kernels.cuda.launch import Launcher, power_of_2, wait

LEVELS = 8  # of length, by which pieces are ordered
FEW, MANY = 64, 512  # rows that the kernel is compiled for: no more sizes, since each is compiled at start


class SplitPlan(NamedTuple):
    """The pieces of a step's rows. All pieces of a row but its last have one length and are neighbours in `pieces`; the
    last ones of all rows follow."""

    runs: Tensor  # [rows] int32, see `interface.Batch`
    pieces: Tensor  # [pieces, 4] int32: row, first key, end of keys, whether it is its row's only one
    places: Tensor  # [rows, 3] int32, of the row that leads a team: its first piece, how many but the last, its last
    arrived: Tensor  # [rows, kv_heads] int32: how many pieces are done; 0 between two layers


@triton.jit
def team_size(runs, row, real, TEAM: tl.constexpr):
    """How many rows of the team there are from this one on, itself included."""
    return tl.minimum(tl.load(runs + row, mask=real, other=1), TEAM - row % TEAM)


@triton.jit(
    do_not_specialize=["rows", "kv_heads", "window", "more"], do_not_specialize_on_alignment=["lengths", "runs"]
)
def _kernel(
    lengths,
    runs,
    pieces,
    places,
    arrived,
    rows,
    kv_heads,
    window,
    more,
    WINDOW: tl.constexpr,
    TEAM: tl.constexpr,
    N: tl.constexpr,
    R: tl.constexpr,
    LEVELS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """One program for all rows. There are at most `more` pieces beside the last one of each row. No `let_next_begin`:
    the next launch reads what is written here before it waits, so it must not begin sooner."""
    wait(OVERLAP)
    row = tl.arange(0, R)
    real = row < rows
    length = tl.load(lengths + row, mask=real, other=0)
    before = tl.load(runs + row - 1, mask=real & (row > 0), other=1)
    leads = real & ((row % TEAM == 0) | (before == 1))
    first = tl.zeros([R], tl.int32)  # in tiles of N keys, as all lengths from here on
    if WINDOW:
        first = tl.maximum(length - window, 0) // N
    newest = length + team_size(runs, row, real, TEAM) - 1
    tiles = tl.where(leads, tl.cdiv(newest, N) - first, 0)
    share = tl.maximum(tl.cdiv(tl.sum(tiles, axis=0), more), 1)
    whole = tl.where(tiles > 0, (tiles - 1) // share, 0)
    at = tl.cumsum(whole, axis=0) - whole
    total = tl.sum(whole, axis=0)
    # Last pieces, roughly longest first, so that no program still has a long one when all others have ended.
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
    for number in range(total + rows, rows + more, R):  # unused: no keys
        tl.store(pieces + 4 * (number + row) + 1, tl.zeros([R], tl.int32), mask=number + row < rows + more)
        tl.store(pieces + 4 * (number + row) + 2, tl.zeros([R], tl.int32), mask=number + row < rows + more)
    for number in range(0, rows * kv_heads, R):
        tl.store(arrived + number + row, tl.zeros([R], tl.int32), mask=number + row < rows * kv_heads)
    tl.store(places + 3 * row, at, mask=real)
    tl.store(places + 3 * row + 1, whole, mask=real)
    tl.store(places + 3 * row + 2, order, mask=real)


_launch = Launcher(_kernel)


def plan_splits(
    q: Tensor, kv_heads: int, lengths: Tensor, runs: Tensor | None, window: int, *, tile: int, group: int
) -> SplitPlan:
    """For the first rows of a batch, of which q [rows, heads, head_dim] has the queries; `lengths` and `runs` are those
    of `interface.Batch`. `tile`: keys taken at a time. `group`: query heads of a team that share keys."""
    rows, heads, _ = q.shape
    more = max(rows, -(-MIN_PROGRAMS // kv_heads))
    if runs is None:
        runs = torch.ones(rows, dtype=torch.int32, device=q.device)
    pieces = torch.empty(rows + more, 4, dtype=torch.int32, device=q.device)
    places = torch.empty(rows, 3, dtype=torch.int32, device=q.device)
    arrived = torch.empty(rows, kv_heads, dtype=torch.int32, device=q.device)
    team = group // (heads // kv_heads)
    _launch(
        (1, 1, 1),
        q.dtype,
        (lengths, runs, pieces, places, arrived, rows, kv_heads, window, more),
        (window > 0, team, tile, FEW if rows <= FEW else max(MANY, power_of_2(rows)), LEVELS),
        num_warps=4,
    )
    return SplitPlan(runs, pieces, places, arrived)
