"""Coded GEMM for a row or a few of x: as `coded_gemm`, with the width shared among the warps of a program.

Each warp multiplies chunks of its own on the tensor cores, 8 rows of x at a time; at the end the warps' sums are added
up. The number of instructions is what bounds it. So what is the same for a group is applied to the group's sum: its
scale, and what all codes have too much (`code_values.raw_base`, zeros) or too little (offsets), times the sum of x,
which is a product with ones.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.coded import CodedRows
from penstock.kernels.cuda.code_values import has_assembly, plane_values, raw_base, raw_exponent
from penstock.kernels.cuda.coded_gemm import LONG_CHUNK, stored_groups
from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait
from penstock.kernels.cuda.product_end import LARGE_OUTS, LONG, add_up, finish, hand_in, split_buffers
from penstock.kernels.interface import Activation

FOLDED_GROUP = 32  # columns of a group from which on sums of x are worth their products


class Tiling(NamedTuple):
    outs: int  # rows of the weight that a program takes
    ways: int  # chunks at a time, a multiple of the warps
    warps: int
    splits: int  # programs that share the width
    stages: int


@triton.constexpr_function
def _power_of_2(exponent: int) -> float:
    return 2.0**exponent


@triton.jit
def _factors(source, mask, c, CHUNK: tl.constexpr, RUN: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr):
    """The scales or shifts of the groups of chunks `c` [ways, 1], for `_pick`; `source` [1, outs]: each row's first."""
    loaded = ()
    bits: tl.constexpr = source.dtype.element_ty.primitive_bitwidth
    if CHUNK % GROUP == 0:
        count: tl.constexpr = CHUNK // GROUP
        size: tl.constexpr = bits * count
        if count == 1:
            loaded = (tl.load(source + c, mask=mask, other=0),)  # type: ignore[assignment]
        else:  # several in one word
            if size == 16:
                words = source.to(tl.pointer_type(tl.int16), bitcast=True)
            elif size == 32:
                words = source.to(tl.pointer_type(tl.int32), bitcast=True)
            else:
                words = source.to(tl.pointer_type(tl.int64), bitcast=True)
            lots: tl.constexpr = max(1, size // 64)
            for lot in tl.static_range(lots):
                loaded = loaded + (tl.load(words + c * lots + lot, mask=mask, other=0),)  # type: ignore[assignment]  # noqa: RUF005
    elif GROUP % CHUNK == 0:
        loaded = (tl.load(source + tl.minimum(c // (GROUP // CHUNK), GROUPS - 1), mask=mask, other=0),)  # type: ignore[assignment]
    else:
        for p in tl.static_range(CHUNK // RUN):
            group = tl.minimum((c * CHUNK + p * RUN) // GROUP, GROUPS - 1)
            loaded = loaded + (tl.load(source + group, mask=mask, other=0),)  # type: ignore[assignment]  # noqa: RUF005
    return loaded


@triton.jit
def _pick(loaded, source, CHUNK: tl.constexpr, RUN: tl.constexpr, GROUP: tl.constexpr, PLANE: tl.constexpr):
    """The factor of a plane's group, float32."""
    kind = source.dtype.element_ty
    bits: tl.constexpr = source.dtype.element_ty.primitive_bitwidth
    if CHUNK % GROUP == 0 and CHUNK != GROUP:
        size: tl.constexpr = bits * (CHUNK // GROUP)
        unit: tl.constexpr = min(64, size)
        place: tl.constexpr = bits * (PLANE * RUN // GROUP)
        word = loaded[place // unit] >> (place % unit)
        if bits == 32:
            value = word.to(tl.int32).to(tl.float32, bitcast=True)
        elif bits == 16:
            value = word.to(tl.int16).to(kind, bitcast=True).to(tl.float32)
        else:
            value = (word.to(tl.int32) & 255).to(tl.float32)
    elif GROUP % CHUNK == 0:
        value = loaded[0].to(tl.float32)
    else:
        value = loaded[PLANE].to(tl.float32)
    return value


@triton.constexpr_function
def _begins(plane: int, chunk: int, run: int, group: int) -> bool:
    """Whether the plane is the first of what is summed up before it is scaled."""
    if group % chunk == 0:
        return plane == 0
    return chunk % group != 0 or plane * run % group == 0


@triton.constexpr_function
def _ends(plane: int, chunk: int, run: int, group: int) -> bool:
    end = (plane + 1) * run
    if group % chunk == 0:
        return end == chunk
    return chunk % group != 0 or end % group == 0


@triton.jit
def _added(scale, shift, ZERO: tl.constexpr, SHIFT: tl.constexpr):
    """What scale * code lacks, if ZERO is what codes have too much; `shift` counts if there are shifts."""
    if SHIFT == "offsets":
        added = shift - ZERO * scale
    elif SHIFT == "zeros":
        added = -(ZERO + shift) * scale
    else:
        added = -ZERO * scale
    return added


@triton.jit
def _add_plane(
    sums,
    part,
    total,
    values,
    v,
    scale,
    shift,
    scales,
    shifts,
    CHUNK: tl.constexpr,
    RUN: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    SHIFT: tl.constexpr,
    FOLD: tl.constexpr,
    PLANE: tl.constexpr,
):
    """The product with one plane: to `part`, the sum of a group, and that to `sums` where the group ends. `total` is
    the sum of x over the group, for all rows of the weight alike."""
    ones = tl.full(values.shape, 1.0, values.dtype)
    if GROUP == 0:
        sums = tl.dot(values, v, sums, input_precision="ieee")
        if FOLD:
            total = tl.dot(ones, v, total, input_precision="ieee")
    else:
        if _begins(PLANE, CHUNK, RUN, GROUP):
            part = tl.dot(values, v, input_precision="ieee")
            if FOLD:
                total = tl.dot(ones, v, input_precision="ieee")
        else:
            part = tl.dot(values, v, part, input_precision="ieee")
            if FOLD:
                total = tl.dot(ones, v, total, input_precision="ieee")
        if _ends(PLANE, CHUNK, RUN, GROUP):
            factor = _pick(scale, scales, CHUNK, RUN, GROUP, PLANE)
            sums += part * factor[:, :, None]
            if FOLD:
                added = factor
                if SHIFT is not None:
                    added = _pick(shift, shifts, CHUNK, RUN, GROUP, PLANE)
                sums += total * _added(factor, added, ZERO, SHIFT)[:, :, None]
    return sums, part, total


@triton.jit(do_not_specialize=["rows", "size", "stride"])
def _gemv_kernel(
    x,
    words,
    scales,
    shifts,
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
    FOLD: tl.constexpr,
    ASM: tl.constexpr,
    BIAS: tl.constexpr,
    ONTO: tl.constexpr,
    GATED: tl.constexpr,
    SILU: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    WAYS: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """FOLD: what was added to all codes is taken from the sums of groups."""
    let_next_begin(OVERLAP)
    tile = tl.program_id(0)
    split = tl.program_id(1)
    chunk: tl.constexpr = PLANES * RUN
    chunks: tl.constexpr = (WIDTH + chunk - 1) // chunk
    groups: tl.constexpr = stored_groups(WIDTH, chunk, GROUP)
    per_word: tl.constexpr = PLANES if WORDS == 1 else 4
    steps: tl.constexpr = (chunks + SPLITS * WAYS - 1) // (SPLITS * WAYS)
    even: tl.constexpr = steps * SPLITS * WAYS * chunk == WIDTH
    half: tl.constexpr = x.dtype.element_ty == tl.float16
    base: tl.constexpr = raw_base(CODE, half, ASM) if FOLD else 0
    exponent: tl.constexpr = raw_exponent(CODE, half, ASM)
    is_raw: tl.constexpr = exponent != 0 or base != 0
    up: tl.constexpr = 100 if exponent > 100 else 0  # x gets it, or else sums were too small for float32
    outs: tl.constexpr = OUTS // 2 if GATED else OUTS
    index = tl.arange(0, OUTS)
    which = tile * outs + index % outs
    line = which + index // outs * size
    there = (which < size)[None, :]
    at = tl.arange(0, RUN)[None, None, :]
    code_line = words + line.to(tl.int64)[None, :, None] * (chunks * WORDS * RUN) + at
    row = tl.arange(0, ROWS)
    real_row = (row < rows)[None, :, None]
    x_line = x + row[None, :, None] * WIDTH + at
    way = tl.arange(0, WAYS)[:, None]
    first = split * (steps * WAYS)
    end = tl.minimum(chunks, first + steps * WAYS)
    sums = tl.zeros([WAYS, OUTS, ROWS], tl.float32)
    part = tl.zeros([WAYS, OUTS, ROWS], tl.float32)
    total = tl.zeros([WAYS, OUTS, ROWS], tl.float32)
    scale_line = scales + (line * groups)[None, :]
    shift_line = shifts + (line * groups)[None, :]
    # Always of the next chunks: what the tensor cores do not multiply is not loaded ahead otherwise.
    scale = ()
    shift = ()
    if GROUP:
        c = tl.minimum(first + way, chunks - 1)
        scale = _factors(scale_line, there, c, chunk, RUN, GROUP, groups)
        if SHIFT is not None:
            shift = _factors(shift_line, there, c, chunk, RUN, GROUP, groups)
    wait(OVERLAP)
    for step in tl.range(0, steps, num_stages=STAGES):
        c = first + step * WAYS + way
        next_scale = scale
        next_shift = shift
        if GROUP:
            n = tl.minimum(c + WAYS, chunks - 1)
            next_scale = _factors(scale_line, there, n, chunk, RUN, GROUP, groups)
            if SHIFT is not None:
                next_shift = _factors(shift_line, there, n, chunk, RUN, GROUP, groups)
        mask = there[:, :, None] if even else there[:, :, None] & (c < end)[:, :, None]
        source = code_line + c[:, :, None] * (WORDS * RUN)
        high = 0
        if WORDS > 1:
            high = tl.load(source + (WORDS - 1) * RUN, mask=mask, other=0)
        for w in tl.static_range(PLANES // per_word):
            low = tl.load(source + w * RUN, mask=mask, other=0)
            for q in tl.static_range(per_word):
                column = (c * chunk + (w * per_word + q) * RUN)[:, :, None]
                if even:
                    v = tl.load(x_line + column, mask=real_row, other=0.0)
                else:
                    inside = (column + at < WIDTH) & (c < end)[:, :, None]
                    v = tl.load(x_line + column, mask=real_row & inside, other=0.0)
                v = tl.permute(v, (0, 2, 1))
                if up:
                    v *= _power_of_2(up)
                values = plane_values(low, high, x, CODE, w * per_word + q, 0 if FOLD else ZERO, ASM, is_raw)
                sums, part, total = _add_plane(
                    sums,
                    part,
                    total,
                    values,
                    v,
                    scale,
                    shift,
                    scales,
                    shifts,
                    chunk,
                    RUN,
                    GROUP,
                    base + ZERO,
                    SHIFT,
                    FOLD,
                    w * per_word + q,
                )
        scale = next_scale
        shift = next_shift
    if GROUP == 0:
        factor = tl.load(scales + line, mask=which < size, other=0.0).to(tl.float32)[None, :]
        sums *= factor[:, :, None]
        if FOLD:
            row_shift = factor
            if SHIFT is not None:
                row_shift = tl.load(shifts + line, mask=which < size, other=0).to(tl.float32)[None, :]
            sums += total * _added(factor, row_shift, base + ZERO, SHIFT)[:, :, None]
    result = tl.sum(sums, axis=0)

    if SPLITS > 1:
        if hand_in(result, parts, arrived, OUTS, ROWS, SPLITS) < SPLITS - 1:
            return
        result = add_up(parts, arrived, OUTS, ROWS, SPLITS)
    if exponent - up:
        result *= _power_of_2(exponent - up)
    finish(result, bias, out, tile, row, rows, size, stride, BIAS, ONTO, GATED, SILU, ROWS, OUTS)


_launch = Launcher(_gemv_kernel)


def coded_gemv(
    x: Tensor,
    part: CodedRows,
    out: Tensor,
    bias: Tensor | None = None,
    *,
    onto: bool = False,
    activation: Activation | None = None,
    tiling: Tiling | None = None,
) -> None:
    """As `coded_gemm`."""
    coding, (rows, width) = part.coding, x.shape
    size = part.rows // (1 if activation is None else 2)
    padded = max(8, power_of_2(rows))
    outs, ways, warps, splits, stages = tiling or _tiling(part)
    tiles = -(-part.rows // outs)
    parts, arrived = split_buffers(out, tiles, splits, outs * padded)
    code, shifts = coding.code, part.scales if part.shifts is None else part.shifts
    fused = (bias is not None, onto, activation is not None, activation == "silu")
    zero = 0 if coding.shift else code.zero
    folds = coding.shift is not None or (code.zero != 0 and (coding.group or width) >= FOLDED_GROUP)
    form = (str(code), code.planes, code.words, coding.run, coding.group, zero, coding.shift, folds)
    _launch(
        (tiles, splits, 1),
        (x.dtype, part.scales.dtype, out.dtype),
        (
            x,
            part.words,
            part.scales,
            shifts,
            x if bias is None else bias,
            out,
            parts,
            arrived,
            rows,
            size,
            out.stride(0),
        ),
        (width, *form, has_assembly(x), *fused, padded, outs, ways, splits, stages),
        num_warps=warps,
        num_stages=stages,
    )


def _tiling(part: CodedRows) -> Tiling:
    if part.coding.chunk > LONG_CHUNK:  # leaves no room for more
        return Tiling(16, 4, 4, 1, 2)
    if part.rows >= LARGE_OUTS:
        warps = 2 if part.coding.code.bits < 8 else 4
        return Tiling(32, warps, warps, 1, 2 if warps == 2 else 3)
    if part.cols > LONG:
        return Tiling(16, 8, 8, 1, 3)
    return Tiling(16, 4, 4, 1, 3)
