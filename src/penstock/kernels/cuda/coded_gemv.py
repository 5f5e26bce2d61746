"""Coded GEMM for a row or a few of x: as `coded_gemm`, with the width shared among the warps of a program.

Each warp multiplies chunks of its own on the tensor cores, 8 rows of x at a time; at the end the warps' sums are added
up. The number of instructions is what bounds it. So what is the same for a group is applied to the group's sum: its
scale, and what all codes have too much (`code_values.raw_base`, zeros) or too little (offsets), times the sum of x,
which is a product with ones.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.coded import CodedRows
from penstock.kernels.cuda.code_values import has_assembly, plane_values, raw_base, raw_exponent
from penstock.kernels.cuda.coded_gemm import LONG_CHUNK, prefetch, split_counters, stored_groups
from penstock.kernels.cuda.gate import activate
from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait
from penstock.kernels.interface import Activation

LARGE_OUTS = 128 * 132  # rows of a weight from which on tiles may be large
LONG = 8192  # columns
FOLDED_GROUP = 32  # columns of a group from which on sums of x are worth their products


class Tiling(NamedTuple):
    outs: int  # rows of the weight that a program takes
    ways: int  # chunks at a time, a multiple of the warps
    warps: int
    splits: int  # programs that share the width
    stages: int
    ahead: int = 0


@triton.constexpr_function
def _lots(chunk: int, group: int, run: int) -> int:
    """Loads of a chunk's factors."""
    return chunk // group if chunk % group == 0 else 1 if group % chunk == 0 else chunk // run


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
    AHEAD: tl.constexpr,
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
    ones = tl.full([WAYS, OUTS, RUN], 1.0, x.dtype.element_ty)
    scale_line = scales + (line * groups)[None, :]
    shift_line = shifts + (line * groups)[None, :]
    if AHEAD:  # while the launch before this one ends
        begin = words + (tile * outs).to(tl.int64) * (chunks * WORDS * RUN) + first * (WORDS * RUN)
        prefetch(begin, chunks * WORDS * RUN * 2, outs, AHEAD)
        if GATED:
            prefetch(begin + size.to(tl.int64) * (chunks * WORDS * RUN), chunks * WORDS * RUN * 2, outs, AHEAD)
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
                    v *= 1.2676506002282294e30  # 2 ** 100
                values = plane_values(
                    low, high, x, CODE, w * per_word + q, 0 if FOLD else ZERO, ASM, exponent != 0 or base != 0
                )
                if GROUP == 0:
                    sums = tl.dot(values, v, sums, input_precision="ieee")
                    if FOLD:
                        total = tl.dot(ones, v, total, input_precision="ieee")
                else:
                    if _begins(w * per_word + q, chunk, RUN, GROUP):
                        part = tl.dot(values, v, input_precision="ieee")
                        if FOLD:
                            total = tl.dot(ones, v, input_precision="ieee")
                    else:
                        part = tl.dot(values, v, part, input_precision="ieee")
                        if FOLD:
                            total = tl.dot(ones, v, total, input_precision="ieee")
                    if _ends(w * per_word + q, chunk, RUN, GROUP):
                        factor = _pick(scale, scales, chunk, RUN, GROUP, w * per_word + q)
                        sums += part * factor[:, :, None]
                        if FOLD:
                            if SHIFT == "offsets":
                                added = _pick(shift, shifts, chunk, RUN, GROUP, w * per_word + q) - base * factor
                            elif SHIFT == "zeros":
                                added = -(base + _pick(shift, shifts, chunk, RUN, GROUP, w * per_word + q)) * factor
                            else:
                                added = -(base + ZERO) * factor
                            sums += total * added[:, :, None]
        scale = next_scale
        shift = next_shift
    if GROUP == 0:
        factor = tl.load(scales + line, mask=which < size, other=0.0).to(tl.float32)[None, :, None]
        sums *= factor
        if FOLD:
            added = -(base + ZERO) * factor
            if SHIFT is not None:
                shift_of_row = tl.load(shifts + line, mask=which < size, other=0).to(tl.float32)[None, :, None]
                added = shift_of_row - base * factor if SHIFT == "offsets" else -(base + shift_of_row) * factor
            sums += total * added
    result = tl.sum(sums, axis=0)

    if SPLITS > 1:  # split-K: the last program adds up all parts, in their order
        inner = index[:, None] * ROWS + row[None, :]
        mine = parts + tile * SPLITS * OUTS * ROWS + inner
        tl.store(mine + split * OUTS * ROWS, result)
        tl.debug_barrier()
        before = tl.atomic_add(arrived + tile, 1, sem="acq_rel")
        if before < SPLITS - 1:
            return
        result = tl.zeros([OUTS, ROWS], tl.float32)
        for number in range(SPLITS):
            result += tl.load(mine + number * OUTS * ROWS, cache_modifier=".cg")
        tl.store(arrived + tile, 0)
    if exponent - up == 20:
        result *= 1048576.0
    elif exponent - up == 26:
        result *= 67108864.0
    elif exponent - up == 8:
        result *= 256.0
    elif exponent - up == 14:
        result *= 16384.0
    if BIAS:
        result += tl.load(bias + line, mask=which < size, other=0.0).to(tl.float32)[:, None]
    if GATED:
        gate, both = tl.split(result.reshape(2, outs, ROWS).permute(1, 2, 0))
        result = activate(gate, SILU) * both
        which = tile * outs + tl.arange(0, outs)
    place = row[None, :] * stride + which[:, None]
    real = (row < rows)[None, :] & (which < size)[:, None]
    if ONTO:
        result += tl.load(out + place, mask=real, other=0.0).to(tl.float32)
    tl.store(out + place, result.to(out.dtype.element_ty), mask=real)


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
    least: int = 8,
) -> None:
    """As `coded_gemm`."""
    coding, (rows, width) = part.coding, x.shape
    size = part.rows // (1 if activation is None else 2)
    padded = max(least, power_of_2(rows))
    outs, ways, warps, splits, stages, ahead = tiling or _tiling(part)
    tiles = -(-part.rows // outs)
    parts, arrived = out, out
    if splits > 1:
        parts = torch.empty(tiles * splits * outs * padded, dtype=torch.float32, device=x.device)
        arrived = split_counters(x.device)
    code, shifts = coding.code, part.scales if part.shifts is None else part.shifts
    fused = (bias is not None, onto, activation is not None, activation == "silu")
    zero = 0 if coding.shift else code.zero
    folds = coding.shift is not None or (code.zero != 0 and (coding.group or width) >= FOLDED_GROUP)
    if ahead:
        share = 2 * coding.words(width) // splits
        ahead = min(share, ahead) // 16 * 16 if size % outs == 0 and has_assembly(x) else 0
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
        (width, *form, has_assembly(x), *fused, padded, outs, ways, splits, stages, ahead),
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
