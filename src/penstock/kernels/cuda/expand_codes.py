"""Coded weights as 16-bit floats, some rows at a time, for products of many rows with cuBLAS; and rows of a coded table."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from penstock.kernels.coded import CodedRows
from penstock.kernels.cuda.code_values import plane_values
from penstock.kernels.cuda.launch import Launcher, let_next_begin, wait

HAS_ASSEMBLY = not knobs.runtime.interpret


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
    all_lines,
    factor,
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
    """Those of chunk c of some lines, times `factor`, to lines `target` of `out`."""
    chunk: tl.constexpr = PLANES * RUN
    line_words: tl.constexpr = (WIDTH + chunk - 1) // chunk * WORDS * RUN
    per_word: tl.constexpr = PLANES if WORDS == 1 else 4
    groups: tl.constexpr = (WIDTH + GROUP - 1) // GROUP if GROUP else 1
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
            scale = tl.load(scales + group * all_lines + line, mask=mask, other=0.0).to(tl.float32)
            values = plane_values(low, high, out, CODE, w * per_word + p, ZERO, ASM).to(tl.float32)
            if SHIFT == "zeros":
                shift = tl.load(shifts + group * all_lines + line, mask=mask, other=0).to(tl.int32)
                values -= (shift - ZERO).to(tl.float32)[:, None]
            values *= scale[:, None]
            if SHIFT == "offsets":
                values += tl.load(shifts + group * all_lines + line, mask=mask, other=0.0).to(tl.float32)[:, None]
            inside = mask[:, None] & (column + at < WIDTH)[None, :]
            place = out + target.to(tl.int64)[:, None] * WIDTH + column + at[None, :]
            tl.store(place, (values * factor).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["begin", "end", "all_lines"])
def _expand_kernel(
    words,
    scales,
    shifts,
    out,
    begin,
    end,
    all_lines,
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
        all_lines,
        1.0,
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


@triton.jit(do_not_specialize=["count", "all_lines", "first", "scale"])
def _rows_kernel(
    tokens,
    words,
    scales,
    shifts,
    out,
    count,
    first,
    all_lines,
    scale,
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
    """The rows of tokens first .. first + all_lines - 1."""
    wait(OVERLAP)
    let_next_begin(OVERLAP)  # see `embed`
    target = tl.program_id(0) * LINES + tl.arange(0, LINES)
    line = tl.load(tokens + target, mask=target < count, other=-1) - first
    mask = (line >= 0) & (line < all_lines)
    _values(
        words,
        scales,
        shifts,
        out,
        line,
        mask,
        target,
        tl.program_id(1),
        all_lines,
        scale,
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


_launch_expand, _launch_rows = Launcher(_expand_kernel), Launcher(_rows_kernel)


def expand(part: CodedRows, begin: int, end: int, out: Tensor) -> Tensor:
    """Rows begin to end of the part, written to `out`, which has room for them; gives [end - begin, cols]."""
    lines = 16
    grid = (-(-(end - begin) // lines), -(-part.cols // part.coding.chunk), 1)
    arguments = (part.words, part.scales, _shifts(part), out, begin, end, part.rows)
    _launch_expand(grid, (out.dtype, part.scales.dtype), arguments, _constants(part, out, lines), num_warps=4)
    return out[: end - begin]


def embed_coded(tokens: Tensor, parts: tuple[CodedRows, ...], scale: float, dtype: torch.dtype) -> Tensor:
    """tokens [n] int64, a table of coded rows -> [n, width]"""
    count, first = len(tokens), 0
    out = torch.empty(count, parts[0].cols, dtype=dtype, device=tokens.device)
    for part in parts:
        lines = 1 if count <= 16 else 16
        grid = (-(-count // lines), -(-part.cols // part.coding.chunk), 1)
        arguments = (tokens, part.words, part.scales, _shifts(part), out, count, first, part.rows, scale)
        _launch_rows(grid, (dtype, part.scales.dtype), arguments, _constants(part, out, lines), num_warps=1)
        first += part.rows
    return out


def _shifts(part: CodedRows) -> Tensor:
    return part.scales if part.shifts is None else part.shifts


def _constants(part: CodedRows, out: Tensor, lines: int) -> tuple[object, ...]:
    coding = part.coding
    code, zero = coding.code, 0 if coding.shift == "offsets" else coding.code.zero
    form = (str(code), code.planes, code.words, coding.run, coding.group, zero, coding.shift)
    return (part.cols, *form, HAS_ASSEMBLY and out.element_size() == 2, lines)
