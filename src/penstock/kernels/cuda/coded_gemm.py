"""Coded GEMM: a few rows times a weight of codes (`kernels.coded`), fused with bias, gated activation or residual sum
as in `skinny_gemm`.

A program takes some rows of the weight, as left operand of the tensor cores: their codes become 16-bit floats in
registers, exactly, and the scale of each group multiplies the group's sum in float32. So the result is more exact than
with weights that were rounded to 16 bits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.coded import CodedRows, Coding
from penstock.kernels.cuda.code_values import has_assembly, plane_values
from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait
from penstock.kernels.cuda.product_end import add_up, finish, hand_in, split_buffers
from penstock.kernels.interface import Activation

MAX_SPLITS = 8
LONG_CHUNK = 256  # columns


class Tiling(NamedTuple):
    """How the GEMM is divided among programs."""

    outs: int  # rows of the weight that a program takes
    splits: int  # programs that share the width (split-K)
    warps: int
    stages: int  # chunks in flight (software pipelining)


@triton.constexpr_function
def stored_groups(width: int, chunk: int, group: int) -> int:
    """See `Coding.stored_groups`."""
    if group and chunk % group == 0:
        return -(-width // chunk) * (chunk // group)
    return -(-width // group) if group else 1


@triton.jit
def _by_group(
    source,
    mask,
    stride,
    c,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    RUN: tl.constexpr,
    GROUP: tl.constexpr,
    ENOUGH: tl.constexpr,
):
    """What there is for each group of chunk c: a tuple of vectors, `stride` apart in memory."""
    groups: tl.constexpr = stored_groups(WIDTH, CHUNK, GROUP)
    loaded = ()
    if ENOUGH:
        if CHUNK % GROUP == 0:
            for g in tl.static_range(CHUNK // GROUP):
                group = tl.minimum(c * (CHUNK // GROUP) + g, groups - 1)
                loaded = loaded + (tl.load(source + group * stride, mask=mask, other=0.0),)  # type: ignore[assignment]  # noqa: RUF005
        elif GROUP % CHUNK == 0:
            group = tl.minimum(c // (GROUP // CHUNK), groups - 1)
            loaded = (tl.load(source + group * stride, mask=mask, other=0.0),)  # type: ignore[assignment]
        else:  # of each plane
            for p in tl.static_range(CHUNK // RUN):
                group = tl.minimum((c * CHUNK + p * RUN) // GROUP, groups - 1)
                loaded = loaded + (tl.load(source + group * stride, mask=mask, other=0.0),)  # type: ignore[assignment]  # noqa: RUF005
    return loaded


@triton.jit
def _offset(shift, scale, ZERO: tl.constexpr, SHIFT: tl.constexpr):
    """What is added to scale * (code - ZERO)."""
    if SHIFT == "zeros":
        shift = (ZERO - shift.to(tl.int32)).to(tl.float32) * scale
    return shift.to(tl.float32)


@triton.jit
def _add_plane(
    sums,
    part,
    low,
    high,
    x,
    x_line,
    real_row,
    scales,
    shifts,
    totals,
    c,
    WIDTH: tl.constexpr,
    CODE: tl.constexpr,
    CHUNK: tl.constexpr,
    RUN: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    SHIFT: tl.constexpr,
    ASM: tl.constexpr,
    PLANE: tl.constexpr,
):
    """The product with one plane: to `part`, the sum of a group, and that to `sums` where the group ends."""
    column = c * CHUNK + PLANE * RUN
    if WIDTH % CHUNK == 0:
        v = tl.load(x_line + column, mask=real_row, other=0.0)
    else:
        v = tl.load(x_line + column, mask=real_row & (column + tl.arange(0, RUN) < WIDTH)[None, :], other=0.0)
    values = plane_values(low, high, x, CODE, PLANE, ZERO, ASM)
    if GROUP == 0:
        sums = tl.dot(values, v.T, sums, input_precision="ieee")
    else:
        nth: tl.constexpr = PLANE * RUN // GROUP if CHUNK % GROUP == 0 else (0 if GROUP % CHUNK == 0 else PLANE)
        begins: tl.constexpr = PLANE == 0 if GROUP % CHUNK == 0 else CHUNK % GROUP != 0 or PLANE * RUN % GROUP == 0
        end: tl.constexpr = (PLANE + 1) * RUN
        ends: tl.constexpr = end == CHUNK if GROUP % CHUNK == 0 else CHUNK % GROUP != 0 or end % GROUP == 0
        if begins:
            part = tl.dot(values, v.T, input_precision="ieee")
        else:
            part = tl.dot(values, v.T, part, input_precision="ieee")
        if ends:
            scale = scales[nth].to(tl.float32)
            sums += part * scale[:, None]
            if SHIFT is not None:
                total = totals[nth]
                last = column + RUN
                if CHUNK % GROUP == 0:
                    pass  # groups beyond the width have a total of 0
                elif GROUP % CHUNK == 0:
                    total = tl.where((last % GROUP == 0) | (last >= WIDTH), total, 0.0)
                else:
                    total = tl.where((column < WIDTH) & ((last % GROUP == 0) | (last >= WIDTH)), total, 0.0)
                sums += _offset(shifts[nth], scale, ZERO, SHIFT)[:, None] * total[None, :]
    return sums, part


@triton.jit(do_not_specialize=["rows", "size", "stride"])
def _gemm_kernel(
    x,
    words,
    scales,
    shifts,
    x_sums,
    bias,
    out,
    parts,
    arrived,
    rows,
    size,
    stride,
    WIDTH: tl.constexpr,
    CODE: tl.constexpr,
    PLANES: tl.constexpr,
    WORDS: tl.constexpr,
    RUN: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    SHIFT: tl.constexpr,
    ASM: tl.constexpr,
    BIAS: tl.constexpr,
    ONTO: tl.constexpr,
    GATED: tl.constexpr,
    SILU: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """`x_sums` [groups, ROWS]: sums of x, if there are shifts. Of a gated pair a program takes half as many rows
    each."""
    let_next_begin(OVERLAP)
    tile = tl.program_id(0)
    split = tl.program_id(1)
    chunk: tl.constexpr = PLANES * RUN
    chunks: tl.constexpr = (WIDTH + chunk - 1) // chunk
    per_word: tl.constexpr = PLANES if WORDS == 1 else 4
    share: tl.constexpr = (chunks + SPLITS - 1) // SPLITS
    outs: tl.constexpr = OUTS // 2 if GATED else OUTS
    index = tl.arange(0, OUTS)
    which = tile * outs + index % outs
    there = which < size
    line = which + index // outs * size
    lots: tl.constexpr = stored_groups(WIDTH, chunk, GROUP)
    at = tl.arange(0, RUN)
    code_line = words + line.to(tl.int64)[:, None] * (chunks * WORDS * RUN) + at[None, :]
    row = tl.arange(0, ROWS)
    real_row = row < rows
    x_line = x + row[:, None] * WIDTH + at[None, :]
    sums = tl.zeros([OUTS, ROWS], tl.float32)
    part = tl.zeros([OUTS, ROWS], tl.float32)
    first = split * share
    has_groups: tl.constexpr = GROUP != 0
    has_shifts: tl.constexpr = has_groups and SHIFT is not None
    # Of the next chunk, always: what the tensor cores do not multiply is not loaded ahead otherwise.
    scale = _by_group(scales + line * lots, there, 1, first, WIDTH, chunk, RUN, GROUP, has_groups)
    shift = _by_group(shifts + line * lots, there, 1, first, WIDTH, chunk, RUN, GROUP, has_shifts)
    wait(OVERLAP)
    total = _by_group(x_sums + row, row < ROWS, ROWS, first, WIDTH, chunk, RUN, GROUP, has_shifts)
    for c in tl.range(first, min(chunks, first + share), num_stages=STAGES):
        next_scale = _by_group(scales + line * lots, there, 1, c + 1, WIDTH, chunk, RUN, GROUP, has_groups)
        next_shift = _by_group(shifts + line * lots, there, 1, c + 1, WIDTH, chunk, RUN, GROUP, has_shifts)
        next_total = _by_group(x_sums + row, row < ROWS, ROWS, c + 1, WIDTH, chunk, RUN, GROUP, has_shifts)
        high = 0
        if WORDS > 1:
            high = tl.load(code_line + (c * WORDS + WORDS - 1) * RUN, mask=there[:, None], other=0)
        for w in tl.static_range(PLANES // per_word):
            low = tl.load(code_line + (c * WORDS + w) * RUN, mask=there[:, None], other=0)
            for p in tl.static_range(per_word):
                sums, part = _add_plane(
                    sums,
                    part,
                    low,
                    high,
                    x,
                    x_line,
                    real_row[:, None],
                    scale,
                    shift,
                    total,
                    c,
                    WIDTH,
                    CODE,
                    chunk,
                    RUN,
                    GROUP,
                    ZERO,
                    SHIFT,
                    ASM,
                    w * per_word + p,
                )
        scale = next_scale
        shift = next_shift
        total = next_total

    if SPLITS > 1:
        if hand_in(sums, parts, arrived, OUTS, ROWS, SPLITS) < SPLITS - 1:
            return
        sums = add_up(parts, arrived, OUTS, ROWS, SPLITS)
    if GROUP == 0:
        row_scale = tl.load(scales + line, mask=there, other=0.0).to(tl.float32)
        sums *= row_scale[:, None]
        if SHIFT is not None:
            row_shift = _offset(tl.load(shifts + line, mask=there, other=0), row_scale, ZERO, SHIFT)
            sums += row_shift[:, None] * tl.load(x_sums + row)[None, :]
    finish(sums, bias, out, tile, row, rows, size, stride, BIAS, ONTO, GATED, SILU, ROWS, OUTS)


@triton.jit(do_not_specialize=["rows"])
def _sums_kernel(
    x,
    x_sums,
    rows,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """The sum of a group of x, for all rows."""
    let_next_begin(OVERLAP)
    group = tl.program_id(0)
    row = tl.arange(0, ROWS)
    total = tl.zeros([ROWS], tl.float32)
    wait(OVERLAP)
    for first in range(0, GROUP, STEP):
        at = first + tl.arange(0, STEP)
        column = group * GROUP + at
        mask = (row < rows)[:, None] & ((at < GROUP) & (column < WIDTH))[None, :]
        total += tl.sum(
            tl.load(x + row[:, None] * WIDTH + column[None, :], mask=mask, other=0.0).to(tl.float32), axis=1
        )
    tl.store(x_sums + group * ROWS + row, total)


_launch, _launch_sums = Launcher(_gemm_kernel), Launcher(_sums_kernel)


def group_sums(x: Tensor, coding: Coding, padded: int) -> Tensor:
    """[groups, padded] float32: what shifts are multiplied with."""
    rows, width = x.shape
    group, groups = coding.group or width, coding.stored_groups(width)
    out = torch.empty(groups, padded, dtype=torch.float32, device=x.device)
    step = min(power_of_2(group), 128)
    _launch_sums(
        (groups, 1, 1), x.dtype, (x, out, rows), (width, group, padded, step), num_warps=4 if padded > 16 else 1
    )
    return out


def coded_gemm(
    x: Tensor,
    part: CodedRows,
    out: Tensor,
    bias: Tensor | None = None,
    *,
    onto: bool = False,
    activation: Activation | None = None,
    tiling: Tiling | None = None,
) -> None:
    """x [rows, in] × part [size, in] to `out` [rows, size], a slice of a wider matrix perhaps; or added to it, if
    `onto`. With an activation the rows of the part are gate and up."""
    coding, (rows, width) = part.coding, x.shape
    size = part.rows // (1 if activation is None else 2)
    padded = max(16, power_of_2(rows))
    outs, splits, warps, stages = tiling or _tiling(padded, part)
    tiles = -(-part.rows // outs)
    parts, arrived = split_buffers(out, tiles, splits, outs * padded)
    x_sums = x if coding.shift is None else group_sums(x, coding, padded)
    code, shifts = coding.code, part.scales if part.shifts is None else part.shifts
    bias_or_any = x if bias is None else bias
    fused = (bias is not None, onto, activation is not None, activation == "silu")
    zero = 0 if coding.shift == "offsets" else code.zero
    form = (str(code), code.planes, code.words, coding.run, coding.group, zero, coding.shift)
    _launch(
        (tiles, splits, 1),
        (x.dtype, part.scales.dtype, out.dtype),
        (x, part.words, part.scales, shifts, x_sums, bias_or_any, out, parts, arrived, rows, size, out.stride(0)),
        (width, *form, has_assembly(x), *fused, padded, outs, splits, stages),
        num_warps=warps,
        num_stages=stages,
    )


def _tiling(rows: int, part: CodedRows) -> Tiling:
    is_long = part.coding.chunk > LONG_CHUNK  # leaves no room for large tiles
    outs, warps, programs = (64, 4, 512) if rows <= 16 or is_long else (128, 8, 256)
    tiles, chunks = -(-part.rows // outs), -(-part.cols // part.coding.chunk)
    splits = 1
    while tiles * splits * 2 <= programs and splits < MAX_SPLITS and splits * 2 <= chunks:
        splits *= 2
    return Tiling(outs, splits, warps, 2 if is_long else 4 if rows <= 32 else 3)
