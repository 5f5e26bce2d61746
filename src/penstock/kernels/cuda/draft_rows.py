"""Small kernels of proposers on the device: where the next drafts of a row begin is known there alone, as long as the
step before is not collected.

Rows of drafting are a matrix [5, rows] int64: slots, positions of the entry that the next draft follows from, positions
of that draft (0: none), masks, and drafts left to draw.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.launch import Launcher, wait

AT_ONCE = 128
COLUMNS = 1024


@triton.jit(do_not_specialize=["count", "width"])
def _next_tokens(rows, slot_tokens, tokens, count, width, AT_ONCE: tl.constexpr, OVERLAP: tl.constexpr):
    wait(OVERLAP)
    index = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
    is_row = index < count
    slot = tl.load(rows + index, mask=is_row, other=0)
    position = tl.load(rows + count + index, mask=is_row, other=0)
    token = tl.load(slot_tokens + slot * width + position + 1, mask=is_row, other=0)
    tl.store(tokens + index, token.to(tl.int64), mask=is_row)


@triton.jit(do_not_specialize=["count", "width"])
def _keep(source, kept, places, target, count, width, COLUMNS: tl.constexpr, OVERLAP: tl.constexpr):
    wait(OVERLAP)
    row = tl.program_id(0)
    slot = tl.load(places + row)
    at = tl.load(places + count + row) + tl.maximum(tl.load(kept + row), 1) - 1
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    values = tl.load(source + at * width + column, mask=column < width)
    tl.store(target + slot * width + column, values, mask=column < width)


@triton.jit(do_not_specialize=["count", "width", "period"])
def _save(rows, source, target, count, width, period, COLUMNS: tl.constexpr, OVERLAP: tl.constexpr):
    wait(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    place = tl.load(rows + row) * period + tl.load(rows + count + row) % period
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    values = tl.load(source + row * width + column, mask=column < width)
    tl.store(target + place * width + column, values, mask=column < width)


@triton.jit(do_not_specialize=["count", "size", "padding"])
def _begin(places, kept, rows, count, size, padding, AT_ONCE: tl.constexpr, OVERLAP: tl.constexpr):
    wait(OVERLAP)
    row = tl.arange(0, AT_ONCE)
    given = row < count
    length = tl.load(places + count + row, mask=given, other=0) + tl.load(kept + row, mask=given, other=0)
    room = tl.load(places + 2 * count + row, mask=given, other=0) - length
    left = tl.minimum(tl.load(places + 3 * count + row, mask=given, other=0), room)
    drafts = given & (left > 0)
    slot = tl.load(places + row, mask=given, other=0)
    mask_row = tl.load(places + 4 * count + row, mask=given, other=0)
    is_row = row < size
    tl.store(rows + row, tl.where(drafts, slot, padding), mask=is_row)
    tl.store(rows + size + row, tl.where(drafts, length - 2, 0), mask=is_row)
    tl.store(rows + 2 * size + row, tl.where(drafts, length, 0), mask=is_row)
    tl.store(rows + 3 * size + row, tl.where(drafts, mask_row, padding), mask=is_row)
    tl.store(rows + 4 * size + row, tl.where(drafts, left, 0), mask=is_row)


@triton.jit(do_not_specialize=["size", "padding"])
def _advance(rows, size, padding, AT_ONCE: tl.constexpr, OVERLAP: tl.constexpr):
    wait(OVERLAP)
    row = tl.arange(0, AT_ONCE)
    is_row = row < size
    left = tl.load(rows + 4 * size + row, mask=is_row, other=0) - 1
    drafts = left > 0
    slot = tl.load(rows + row, mask=is_row, other=0)
    entry = tl.load(rows + size + row, mask=is_row, other=0)
    position = tl.load(rows + 2 * size + row, mask=is_row, other=0)
    tl.store(rows + row, tl.where(drafts, slot, padding), mask=is_row)
    tl.store(rows + size + row, tl.where(drafts, entry + 1, 0), mask=is_row)
    tl.store(rows + 2 * size + row, tl.where(drafts, position + 1, 0), mask=is_row)
    tl.store(rows + 4 * size + row, tl.maximum(left, 0), mask=is_row)


@triton.jit(do_not_specialize=["count", "width"])
def _collect(places, kept, slot_tokens, drafts, count, width, MOST: tl.constexpr, OVERLAP: tl.constexpr):
    wait(OVERLAP)
    row = tl.program_id(0)
    length = tl.load(places + count + row) + tl.load(kept + row)
    room = tl.load(places + 2 * count + row) - length
    number = tl.minimum(tl.load(places + 3 * count + row), room)
    index = tl.arange(0, MOST)
    token = tl.load(slot_tokens + tl.load(places + row) * width + length + index, mask=index < number, other=-1)
    tl.store(drafts + row * MOST + index, token, mask=index < MOST)


_launch_next_tokens, _launch_keep, _launch_save = Launcher(_next_tokens), Launcher(_keep), Launcher(_save)
_launch_begin, _launch_advance, _launch_collect = Launcher(_begin), Launcher(_advance), Launcher(_collect)


def next_tokens(rows: Tensor, slot_tokens: Tensor, tokens: Tensor) -> None:
    """The token behind each position. `rows` [2 or more, n] int64: slots, positions; `tokens` [n] int64 is written."""
    count = rows.shape[1]
    arguments = rows, slot_tokens, tokens, count, slot_tokens.shape[1]
    _launch_next_tokens((-(-count // AT_ONCE), 1, 1), tokens.dtype, arguments, (AT_ONCE,), num_warps=4)


def keep_rows(source: Tensor, kept: Tensor, places: Tensor, target: Tensor) -> None:
    """target[slot] = source[first + kept - 1], of each row; of one that draws none, source[first]. `places` [2, rows]
    int64: slots, firsts; `kept` [rows] int32; source and target [.., width] of the same type."""
    count, width = places.shape[1], source.shape[1]
    arguments = source, kept, places, target, count, width
    _launch_keep((count, -(-width // COLUMNS), 1), source.dtype, arguments, (COLUMNS,), num_warps=4)


def save_rows(rows: Tensor, source: Tensor, target: Tensor, period: int) -> None:
    """target[slot * period + position % period] = source[row]. `rows` [2 or more, n] int64: slots, positions; source
    and target [.., width] of the same type."""
    count, width = rows.shape[1], source.shape[1]
    arguments = rows, source, target, count, width, period
    _launch_save((count, -(-width // COLUMNS), 1), source.dtype, arguments, (COLUMNS,), num_warps=4)


def begin_drafts(places: Tensor, kept: Tensor, rows: Tensor, padding: int) -> None:
    """Write the rows of drafting. `places` [5, n] int64: slots; lengths of the sequences, less `kept` [n] int32; where
    drafts end at most; how many to draw; masks. `rows` has columns to spare, which get the slot `padding`."""
    count, size = places.shape[1], rows.shape[1]
    assert size <= AT_ONCE
    _launch_begin((1, 1, 1), rows.dtype, (places, kept, rows, count, size, padding), (AT_ONCE,), num_warps=4)


def advance_drafts(rows: Tensor, padding: int) -> None:
    """To the next draft; rows without one get the slot `padding`."""
    _launch_advance((1, 1, 1), rows.dtype, (rows, rows.shape[1], padding), (AT_ONCE,), num_warps=4)


def collect_drafts(places: Tensor, kept: Tensor, slot_tokens: Tensor, drafts: Tensor) -> None:
    """Read the drafts of `begin_drafts` from the slots: to `drafts` [n, most] int32, -1 behind the last."""
    count, most = drafts.shape
    arguments = places, kept, slot_tokens, drafts, count, slot_tokens.shape[1]
    _launch_collect((count, 1, 1), drafts.dtype, arguments, (most,), num_warps=1)
