"""Triton kernels of low-rank deltas, first half: A·x. See `low_rank`, which launches them."""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.kernels.cuda.launch import let_next_begin, wait


@triton.jit
def find_a(numbers, table, tiles, tile, entries, entry, UNIT: tl.constexpr):
    """Of a tile: its first row in order, how many it has, and A of a projection: units of ranks, where it begins."""
    first = tl.load(tiles + 3 * tile + 1)
    count = tl.load(tiles + 3 * tile + 2)
    at = table + (tl.load(tiles + 3 * tile) * entries + entry) * 4
    units = tl.where(count > 0, tl.load(at + 2), 0)
    return first, count, units, numbers + tl.load(at).to(tl.int64) * UNIT


@triton.jit
def shrink_unit(a, v, place, there, PRECISION: tl.constexpr):
    """A·x of one unit of ranks, stored at `place` [ranks, rows]. A [groups, ranks, width] and x [groups, width, rows]:
    a warp has a group of the width, and the groups are added up."""
    tl.store(place, tl.sum(tl.dot(a, v, input_precision=PRECISION), axis=0), mask=there)


@triton.jit
def _norm_row(x, gains, normed, factors, row, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """As `norm`; keeps the factor."""
    at = tl.arange(0, BLOCK)
    inside = at < WIDTH
    line = row.to(tl.int64) * WIDTH
    gain = tl.load(gains + at, mask=inside, other=0.0)
    wide = tl.load(x + line + at, mask=inside, other=0.0).to(tl.float32)
    factor = tl.rsqrt(tl.sum(wide * wide, axis=0) / WIDTH + eps)
    tl.store(normed + line + at, (wide * factor * gain).to(normed.dtype.element_ty), mask=inside)
    tl.store(factors + row, factor)


@triton.jit
def _load_a(line, gains, at, there, WIDTH: tl.constexpr, NORM: tl.constexpr):
    """With the gains of the norm; its factor multiplies A·x."""
    a = tl.load(line, mask=there, other=0.0)
    if NORM:
        a = (a.to(tl.float32) * tl.load(gains + at, mask=at < WIDTH, other=0.0)).to(a.dtype)
    return a


@triton.jit(
    do_not_specialize=["normed_rows", "eps", "first_entry", "entries"],
    do_not_specialize_on_alignment=["order", "tiles"],
)
def shrink_few_kernel(
    x,
    gains,
    normed,
    factors,
    numbers,
    table,
    order,
    tiles,
    parts,
    normed_rows,
    eps,
    first_entry,
    entries,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
    SPLITS: tl.constexpr,
    SHARE: tl.constexpr,
    NORM: tl.constexpr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
    UNIT: tl.constexpr,
    MAX_RANK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The first programs take a row of the norm each, the others SHARE of the width for a tile and a projection."""
    let_next_begin(OVERLAP)
    program = tl.program_id(0)
    if NORM:
        if program < normed_rows:
            wait(OVERLAP)
            _norm_row(x, gains, normed, factors, program, eps, WIDTH, BLOCK)
            return
        program -= normed_rows
    split = program % SPLITS
    part = program // SPLITS % PARTS
    tile = program // (SPLITS * PARTS)
    first, count, units, source = find_a(numbers, table, tiles, tile, entries, first_entry + part, UNIT)
    each: tl.constexpr = SHARE // GROUPS
    at = split * SHARE + tl.arange(0, GROUPS)[:, None, None] * each + tl.arange(0, each)[None, None, :]
    rank = tl.arange(0, UNIT)
    row = tl.arange(0, ROWS)
    index = tl.load(order + first + row, mask=row < count, other=0).to(tl.int64)
    line = source + rank[None, :, None] * WIDTH + at
    a = _load_a(line, gains, at, (at < WIDTH) & (units > 0), WIDTH, NORM)
    wait(OVERLAP)
    if units == 0:
        return
    there = (row < count)[None, :]
    v = tl.load(x + index[None, :, None] * WIDTH + at, mask=there[:, :, None] & (at < WIDTH), other=0.0)
    v = tl.permute(v, (0, 2, 1))
    row_place = ((first + row).to(tl.int64) * PARTS + part) * SPLITS + split
    place = parts + row_place[None, :] * MAX_RANK + rank[:, None]
    shrink_unit(a, v, place, there, PRECISION)
    for unit in range(1, units):
        a = _load_a(line + unit * UNIT * WIDTH, gains, at, at < WIDTH, WIDTH, NORM)
        shrink_unit(a, v, place + unit * UNIT, there, PRECISION)


@triton.jit(do_not_specialize=["first_entry", "entries"], do_not_specialize_on_alignment=["order", "tiles"])
def shrink_many_kernel(
    x,
    numbers,
    table,
    order,
    tiles,
    parts,
    first_entry,
    entries,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
    SPLITS: tl.constexpr,
    SHARE: tl.constexpr,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
    UNIT: tl.constexpr,
    MAX_RANK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program takes SHARE of the width for a tile of many rows and a projection."""
    let_next_begin(OVERLAP)
    part = tl.program_id(1)
    split = tl.program_id(2)
    first, count, units, source = find_a(numbers, table, tiles, tl.program_id(0), entries, first_entry + part, UNIT)
    row = tl.arange(0, ROWS)
    rank = tl.arange(0, UNIT)
    there = (row < count)[:, None]
    index = tl.load(order + first + row, mask=row < count, other=0).to(tl.int64)
    place = (((first + row).to(tl.int64) * PARTS + part) * SPLITS + split) * MAX_RANK
    wait(OVERLAP)
    for unit in range(units):
        h = tl.zeros([ROWS, UNIT], tl.float32)
        for begin in range(split * SHARE, (split + 1) * SHARE, STEP):
            at = begin + tl.arange(0, STEP)
            inside = (at < WIDTH)[None, :]
            a = tl.load(source + (unit * UNIT + rank)[:, None] * WIDTH + at[None, :], mask=inside, other=0.0)
            v = tl.load(x + index[:, None] * WIDTH + at[None, :], mask=there & inside, other=0.0)
            h = tl.dot(v, a.T, h, input_precision=PRECISION)
        tl.store(parts + place[:, None] + unit * UNIT + rank[None, :], h, mask=there)
