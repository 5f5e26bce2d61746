"""How the keys of a row are divided where results must not depend on other rows: into chunks that end at fixed
positions, whose partial results are combined in their order.

The size of a row's chunks follows from its number of keys alone: `CHUNK`, doubled as often as it takes to have no more
than `MAX_CHUNKS`. Programs take one or several chunks each, which changes no result, so that this can depend on all
rows of a step: as in `split_kv`, a piece is at most as long as the average row, and long pieces come first.

Rows that are consecutive tokens of one sequence form teams, as there; those of a team have chunks of one size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.attention_tiles import MIN_PROGRAMS
from penstock.kernels.cuda.launch import Launcher, power_of_2, wait
from penstock.kernels.cuda.split_kv import FEW, LEVELS, MANY

CHUNK = tl.constexpr(256)  # keys
MAX_CHUNKS = tl.constexpr(32)
DOUBLINGS = tl.constexpr(16)  # more than any context needs


class InvariantPlan(NamedTuple):
    """The pieces of a step's rows, in the order in which programs take them."""

    runs: Tensor  # [rows] int32, see `interface.Batch`
    pieces: Tensor  # [pieces, 3] int32: row, first key, end of keys
    counts: Tensor  # [rows] int32: pieces of the row
    arrived: Tensor  # [rows, kv_heads] int32: how many pieces are done; 0 between two layers


@triton.jit
def chunk_size(length):
    """Of a row with so many keys, or of rows."""
    size = length * 0 + CHUNK
    for _ in tl.static_range(DOUBLINGS):
        size = tl.where(length > size * MAX_CHUNKS, size * 2, size)
    return size


@triton.jit
def invariant_team(runs, row, real, length, TEAM: tl.constexpr):
    """How many rows of the team there are from this one on, itself included."""
    alike = chunk_size(length) * MAX_CHUNKS - length + 1  # rows until chunks get larger
    return tl.minimum(tl.minimum(tl.load(runs + row, mask=real, other=1), TEAM - row % TEAM), alike)


@triton.jit(
    do_not_specialize=["rows", "kv_heads", "window", "more"], do_not_specialize_on_alignment=["lengths", "runs"]
)
def _kernel(
    lengths,
    runs,
    pieces,
    counts,
    arrived,
    rows,
    kv_heads,
    window,
    more,
    WINDOW: tl.constexpr,
    TEAM: tl.constexpr,
    R: tl.constexpr,
    LEVELS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """One program for all rows. There are at most `more` pieces beside the last one of each row. No `let_next_begin`:
    the next launch reads what is written here before it waits, so it must not begin sooner."""
    wait(OVERLAP)
    row = tl.arange(0, R)
    real = row < rows
    length = tl.load(lengths + row, mask=real, other=1)
    size = chunk_size(length)
    before = tl.load(runs + row - 1, mask=real & (row > 0), other=1)
    leads = real & ((row % TEAM == 0) | (before == 1) | (size != chunk_size(length - 1)))
    newest = length + invariant_team(runs, row, real, length, TEAM) - 1
    first = tl.zeros([R], tl.int32)  # in chunks
    if WINDOW:
        first = tl.maximum(length - window, 0) // size
    chunks = tl.where(leads, tl.cdiv(newest, size) - first, 0)
    share = tl.maximum(tl.cdiv(tl.sum(chunks * (size // CHUNK), axis=0), more), 1)
    each = tl.cdiv(share * CHUNK, size)  # chunks of a whole piece
    whole = tl.where(chunks > 0, (chunks - 1) // each, 0)
    at = tl.cumsum(whole, axis=0) - whole
    total = tl.sum(whole, axis=0)
    # Last pieces, roughly longest first, so that no program still has a long one when all others have ended.
    level = tl.minimum(tl.maximum(((chunks - whole * each) * LEVELS - 1) // each, 0), LEVELS - 1)
    order = total + tl.zeros([R], tl.int32)
    done = total
    for number in range(LEVELS):
        mine = (real & (level == LEVELS - 1 - number)).to(tl.int32)
        order = tl.where(mine == 1, done + tl.cumsum(mine, axis=0) - 1, order)
        done += tl.sum(mine, axis=0)

    last = pieces + 3 * order
    tl.store(last, row, mask=real)
    tl.store(last + 1, (first + whole * each) * size, mask=real)
    tl.store(last + 2, tl.where(leads, newest, 0), mask=real)
    for number in range(tl.max(whole, axis=0)):
        here = pieces + 3 * (at + number)
        some = number < whole
        tl.store(here, row, mask=some)
        tl.store(here + 1, (first + number * each) * size, mask=some)
        tl.store(here + 2, (first + number * each + each) * size, mask=some)
    for number in range(total + rows, rows + more, R):  # unused: no keys
        tl.store(pieces + 3 * (number + row) + 1, tl.zeros([R], tl.int32), mask=number + row < rows + more)
        tl.store(pieces + 3 * (number + row) + 2, tl.zeros([R], tl.int32), mask=number + row < rows + more)
    for number in range(0, rows * kv_heads, R):
        tl.store(arrived + number + row, tl.zeros([R], tl.int32), mask=number + row < rows * kv_heads)
    tl.store(counts + row, whole + 1, mask=real)


_launch = Launcher(_kernel)


def plan_invariant(q: Tensor, kv_heads: int, lengths: Tensor, runs: Tensor | None, window: int) -> InvariantPlan:
    """For the first rows of a batch, of which q [rows, heads, head_dim] has the queries; `lengths` and `runs` are those
    of `interface.Batch`."""
    rows, heads, _ = q.shape
    more = max(rows, -(-MIN_PROGRAMS // kv_heads))
    if runs is None:
        runs = torch.ones(rows, dtype=torch.int32, device=q.device)
    pieces = torch.empty(rows + more, 3, dtype=torch.int32, device=q.device)
    counts = torch.empty(rows, dtype=torch.int32, device=q.device)
    arrived = torch.empty(rows, kv_heads, dtype=torch.int32, device=q.device)
    team = team_rows(heads, kv_heads) // (heads // kv_heads)
    _launch(
        (1, 1, 1),
        q.dtype,
        (lengths, runs, pieces, counts, arrived, rows, kv_heads, window, more),
        (window > 0, team, FEW if rows <= FEW else max(MANY, power_of_2(rows)), LEVELS),
        num_warps=4,
    )
    return InvariantPlan(runs, pieces, counts, arrived)


def team_rows(heads: int, kv_heads: int) -> int:
    """Rows of the matrix that the query heads of a team are put together in: tensor cores take 16 at least."""
    return max(16, power_of_2(heads // kv_heads))
