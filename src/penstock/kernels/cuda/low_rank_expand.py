"""Triton kernels of low-rank deltas, second half: y += scale · B·(A·x), and the delta of embedded tokens. See
`low_rank`, which launches them."""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.kernels.cuda.gate import activate
from penstock.kernels.cuda.launch import let_next_begin, wait
from penstock.kernels.cuda.low_rank_shrink import find_a, shrink_unit


@triton.jit
def _load_b(source, unit, outs, size, there, UNIT: tl.constexpr):
    """[outs, ranks] of a unit."""
    at = (unit * size + outs)[:, None] * UNIT + tl.arange(0, UNIT)[None, :]
    return tl.load(source + at, mask=(outs < size)[:, None] & there, other=0.0)


@triton.jit
def _find_b(numbers, table, tiles, tile, entries, entry, outs, size, UNIT: tl.constexpr):
    """Of a tile's projection: units of ranks, where B begins, scale, and B's first unit for these outputs."""
    count = tl.load(tiles + 3 * tile + 2)
    at = table + (tl.load(tiles + 3 * tile) * entries + entry) * 4
    units = tl.where(count > 0, tl.load(at + 2), 0)
    source = numbers + tl.load(at + 1).to(tl.int64) * UNIT
    scale = tl.load(at + 3).to(tl.float32, bitcast=True)
    return units, source, scale, _load_b(source, 0, outs, size, units > 0, UNIT)


@triton.jit
def _find_parts(
    parts,
    first,
    row,
    count,
    part,
    units,
    PARTS: tl.constexpr,
    SPLITS: tl.constexpr,
    MOST_SPLITS: tl.constexpr,
    UNIT: tl.constexpr,
    MAX_RANK: tl.constexpr,
):
    """Where the partial sums of A·x [splits, ranks, rows] of a projection's first unit are, and which there are. They
    are loaded all at once: one by one, each would be waited for."""
    split = tl.arange(0, MOST_SPLITS)[:, None, None]
    rows = (((first + row).to(tl.int64) * PARTS + part) * SPLITS * MAX_RANK)[None, None, :]
    place = parts + rows + split * MAX_RANK + tl.arange(0, UNIT)[None, :, None]
    return place, (row < count)[None, None, :] & (split < SPLITS) & (units > 0)


@triton.jit
def _delta(h, b, place, there, source, units, outs, size, UNIT: tl.constexpr, PRECISION: tl.constexpr):
    """B·(A·x) [outs, rows] of one projection; `h`, partial sums, and `b` are of the first unit."""
    delta = tl.dot(b, tl.sum(h, axis=0).to(b.dtype), input_precision=PRECISION)
    for unit in range(1, units):
        more = _load_b(source, unit, outs, size, True, UNIT)
        h = tl.load(place + unit * UNIT, mask=there, other=0.0)
        delta = tl.dot(more, tl.sum(h, axis=0).to(b.dtype), delta, input_precision=PRECISION)
    return delta


@triton.jit
def _find_outs(block, SIZE: tl.constexpr, OTHERS: tl.constexpr, OUTS: tl.constexpr, IS_ONE: tl.constexpr):
    """Of a block: which projection it is of, its outputs there, how many that has, and where it begins. `IS_ONE`: there
    is but one, or a gated pair, of which a block has both."""
    part = 0
    size = SIZE
    offset = 0
    if not IS_ONE:
        blocks: tl.constexpr = (SIZE + OUTS - 1) // OUTS
        others: tl.constexpr = (OTHERS + OUTS - 1) // OUTS
        if block >= blocks:
            part = 1 + (block - blocks) // others
            block = (block - blocks) % others
            size = OTHERS
            offset = SIZE + (part - 1) * OTHERS
    return part, block * OUTS + tl.arange(0, OUTS), size, offset


@triton.jit
def _shrink_next(
    result, a, line, k, place, units, there, SIZE: tl.constexpr, UNIT: tl.constexpr, PRECISION: tl.constexpr
):
    """Of the product behind a gated one: A·x of these outputs; `a` is the first unit."""
    v = tl.reshape(result.to(a.dtype), (a.shape[0], a.shape[2], result.shape[1]))
    if units > 0:
        shrink_unit(a, v, place, there, PRECISION)
    for unit in range(1, units):
        a = tl.load(line + unit * UNIT * SIZE, mask=k < SIZE, other=0.0)
        shrink_unit(a, v, place + unit * UNIT, there, PRECISION)


@triton.jit(
    do_not_specialize=["first_entry", "entries", "next_entry"], do_not_specialize_on_alignment=["order", "tiles"]
)
def expand_kernel(
    parts,
    factors,
    numbers,
    table,
    order,
    tiles,
    y,
    out,
    next_parts,
    first_entry,
    entries,
    next_entry,
    SIZE: tl.constexpr,
    OTHERS: tl.constexpr,
    PARTS: tl.constexpr,
    SPLITS: tl.constexpr,
    MOST_SPLITS: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    SILU: tl.constexpr,
    ONTO: tl.constexpr,
    NEXT: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    GROUPS: tl.constexpr,
    PRECISION: tl.constexpr,
    UNIT: tl.constexpr,
    MAX_RANK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program takes OUTS outputs of a projection (SIZE of the first one, OTHERS of each other), or of a gated pair,
    for a tile. NEXT: also their part of A·x of the next product, which reads what the gate gives."""
    let_next_begin(OVERLAP)
    tile = tl.program_id(0)
    block = tl.program_id(1)
    first = tl.load(tiles + 3 * tile + 1)
    count = tl.load(tiles + 3 * tile + 2)
    part, outs, size, offset = _find_outs(block, SIZE, OTHERS, OUTS, PARTS == 1 or GATED)
    rank = tl.arange(0, UNIT)
    row = tl.arange(0, ROWS)
    units, source, scale, b = _find_b(numbers, table, tiles, tile, entries, first_entry + part, outs, size, UNIT)
    if GATED:
        units2, source2, scale2, b2 = _find_b(numbers, table, tiles, tile, entries, first_entry + 1, outs, size, UNIT)
    if NEXT:
        _, _, next_units, line = find_a(numbers, table, tiles, tile, entries, next_entry, UNIT)
        each: tl.constexpr = OUTS // GROUPS
        k = block * OUTS + tl.arange(0, GROUPS)[:, None, None] * each + tl.arange(0, each)[None, None, :]
        line += rank[None, :, None] * SIZE + k
        a = tl.load(line, mask=(k < SIZE) & (next_units > 0), other=0.0)
    index = tl.load(order + first + row, mask=row < count, other=0).to(tl.int64)
    wait(OVERLAP)
    needed = units
    if GATED:  # the gate is for all rows
        needed = count
    if needed == 0:
        return
    width: tl.constexpr = SIZE + (PARTS - 1) * OTHERS
    there = (row < count)[None, :]
    real = there & (outs < size)[:, None]
    factor = tl.full([ROWS], 1.0, tl.float32)
    if NORM:
        factor = tl.load(factors + index, mask=row < count, other=0.0)
    at = index[None, :] * width + offset + outs[:, None]
    own = tl.load(y + at, mask=real, other=0.0)
    if GATED:
        own2 = tl.load(y + at + SIZE, mask=real, other=0.0)
    place, held = _find_parts(parts, first, row, count, part, units, PARTS, SPLITS, MOST_SPLITS, UNIT, MAX_RANK)
    h = tl.load(place, mask=held, other=0.0)
    if GATED:
        place2, held2 = _find_parts(parts, first, row, count, 1, units2, PARTS, SPLITS, MOST_SPLITS, UNIT, MAX_RANK)
        h2 = tl.load(place2, mask=held2, other=0.0)
    delta = _delta(h, b, place, held, source, units, outs, size, UNIT, PRECISION)
    result = own.to(tl.float32) + delta * (factor * scale)[None, :]
    if GATED:
        delta = _delta(h2, b2, place2, held2, source2, units2, outs, size, UNIT, PRECISION)
        up = own2.to(tl.float32) + delta * (factor * scale2)[None, :]
        result = activate(result, SILU) * up
        at = index[None, :] * SIZE + outs[:, None]
        if NEXT:
            rows = (first + row).to(tl.int64) * tl.num_programs(1) + block
            next_place = next_parts + rows[None, :] * MAX_RANK + rank[:, None]
            _shrink_next(result, a, line, k, next_place, next_units, there, SIZE, UNIT, PRECISION)
        if ONTO:
            result = result.to(out.dtype.element_ty).to(tl.float32)
            result += tl.load(out + at, mask=real, other=0.0).to(tl.float32)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=real)


@triton.jit(do_not_specialize=["scale", "entry", "entries"], do_not_specialize_on_alignment=["order", "tiles"])
def embed_kernel(
    x,
    tokens,
    numbers,
    table,
    order,
    tiles,
    scale,
    entry,
    entries,
    VOCAB: tl.constexpr,
    WIDTH: tl.constexpr,
    OUTS: tl.constexpr,
    UNIT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program takes OUTS elements of the rows of a tile, one after the other. Of a token A has a column."""
    let_next_begin(OVERLAP)
    tile = tl.program_id(0)
    outs = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    first, count, units, columns = find_a(numbers, table, tiles, tile, entries, entry, UNIT)
    _, source, own, b = _find_b(numbers, table, tiles, tile, entries, entry, outs, WIDTH, UNIT)
    rank = tl.arange(0, UNIT)
    wait(OVERLAP)
    if units == 0:
        return
    for row in range(count):
        index = tl.load(order + first + row).to(tl.int64)
        column = columns + tl.load(tokens + index) * UNIT + rank
        delta = tl.sum(b.to(tl.float32) * tl.load(column).to(tl.float32)[None, :], axis=1)
        for unit in range(1, units):
            more = _load_b(source, unit, outs, WIDTH, True, UNIT)
            h = tl.load(column + unit * VOCAB * UNIT)
            delta += tl.sum(more.to(tl.float32) * h.to(tl.float32)[None, :], axis=1)
        place = x + index * WIDTH + outs
        result = tl.load(place, mask=outs < WIDTH, other=0.0).to(tl.float32) + delta * (own * scale)
        tl.store(place, result.to(x.dtype.element_ty), mask=outs < WIDTH)
