"""Coded weights as 16-bit floats, some rows at a time, for products of many rows with cuBLAS."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.coded import CodedRows
from penstock.kernels.cuda.code_values import has_assembly, plane_values
from penstock.kernels.cuda.coded_gemm import stored_groups
from penstock.kernels.cuda.launch import Launcher, let_next_begin, wait


@triton.jit
def _values(
    words,
    scales,
    shifts,
    out,
    line,
    mask,
    target,
    c,
    WIDTH: tl.constexpr,
    CODE: tl.constexpr,
    PLANES: tl.constexpr,
    WORDS: tl.constexpr,
    RUN: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    SHIFT: tl.constexpr,
    ASM: tl.constexpr,
):
    """Those of chunk c of some lines, to lines `target` of `out`."""
    chunk: tl.constexpr = PLANES * RUN
    line_words: tl.constexpr = (WIDTH + chunk - 1) // chunk * WORDS * RUN
    per_word: tl.constexpr = PLANES if WORDS == 1 else 4
    groups: tl.constexpr = stored_groups(WIDTH, chunk, GROUP)
    at = tl.arange(0, RUN)
    source = words + line.to(tl.int64)[:, None] * line_words + c * WORDS * RUN + at[None, :]
    high = 0
    if WORDS > 1:
        high = tl.load(source + (WORDS - 1) * RUN, mask=mask[:, None], other=0)
    for w in tl.static_range(PLANES // per_word):
        low = tl.load(source + w * RUN, mask=mask[:, None], other=0)
        for p in tl.static_range(per_word):
            column = c * chunk + (w * per_word + p) * RUN
            group = tl.minimum(column // GROUP, groups - 1) if GROUP else 0
            scale = tl.load(scales + line * groups + group, mask=mask, other=0.0).to(tl.float32)
            values = plane_values(low, high, out, CODE, w * per_word + p, ZERO, ASM).to(tl.float32)
            if SHIFT == "zeros":
                shift = tl.load(shifts + line * groups + group, mask=mask, other=0).to(tl.int32)
                values -= (shift - ZERO).to(tl.float32)[:, None]
            values *= scale[:, None]
            if SHIFT == "offsets":
                values += tl.load(shifts + line * groups + group, mask=mask, other=0.0).to(tl.float32)[:, None]
            inside = mask[:, None] & (column + at < WIDTH)[None, :]
            place = out + target.to(tl.int64)[:, None] * WIDTH + column + at[None, :]
            tl.store(place, values.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["begin", "end"])
def _expand_kernel(
    words,
    scales,
    shifts,
    out,
    begin,
    end,
    WIDTH: tl.constexpr,
    CODE: tl.constexpr,
    PLANES: tl.constexpr,
    WORDS: tl.constexpr,
    RUN: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    SHIFT: tl.constexpr,
    ASM: tl.constexpr,
    LINES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    target = tl.program_id(0) * LINES + tl.arange(0, LINES)
    line = begin + target
    wait(OVERLAP)  # for what still reads `out`
    _values(
        words,
        scales,
        shifts,
        out,
        line,
        line < end,
        target,
        tl.program_id(1),
        WIDTH,
        CODE,
        PLANES,
        WORDS,
        RUN,
        GROUP,
        ZERO,
        SHIFT,
        ASM,
    )


_launch = Launcher(_expand_kernel)


def expand(part: CodedRows, begin: int, end: int, out: Tensor) -> Tensor:
    """Rows begin to end of the part, written to `out`, which has room for them; gives [end - begin, cols]."""
    lines = 16
    grid = (-(-(end - begin) // lines), -(-part.cols // part.coding.chunk), 1)
    arguments = (part.words, part.scales, _shifts(part), out, begin, end)
    _launch(grid, (out.dtype, part.scales.dtype), arguments, _constants(part, out, lines), num_warps=4)
    return out[: end - begin]


def _shifts(part: CodedRows) -> Tensor:
    return part.scales if part.shifts is None else part.shifts


def _constants(part: CodedRows, out: Tensor, lines: int) -> tuple[object, ...]:
    coding = part.coding
    code, zero = coding.code, 0 if coding.shift == "offsets" else coding.code.zero
    form = (str(code), code.planes, code.words, coding.run, coding.group, zero, coding.shift)
    return (part.cols, *form, has_assembly(out), lines)
