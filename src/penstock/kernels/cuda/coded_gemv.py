"""experimental: split-K among the warps of a program"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from penstock.kernels.coded import CodedRows
from penstock.kernels.cuda.code_values import plane_values
from penstock.kernels.cuda.coded_gemm import _counters, _offset, group_sums, prefetch
from penstock.kernels.cuda.gate import activate
from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait
from penstock.kernels.interface import Activation

HAS_ASSEMBLY = not knobs.runtime.interpret


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
    """source [1, n], c [K, 1]"""
    groups: tl.constexpr = (WIDTH + GROUP - 1) // GROUP if GROUP else 1
    loaded = ()
    if ENOUGH:
        if CHUNK % GROUP == 0:
            for g in tl.static_range(CHUNK // GROUP):
                group = tl.minimum(c * (CHUNK // GROUP) + g, groups - 1)
                loaded = loaded + (tl.load(source + group * stride, mask=mask, other=0.0),)
        elif GROUP % CHUNK == 0:
            group = tl.minimum(c // (GROUP // CHUNK), groups - 1)
            loaded = (tl.load(source + group * stride, mask=mask, other=0.0),)
        else:
            for p in tl.static_range(CHUNK // RUN):
                group = tl.minimum((c * CHUNK + p * RUN) // GROUP, groups - 1)
                loaded = loaded + (tl.load(source + group * stride, mask=mask, other=0.0),)
    return loaded


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
    last_chunk,
    WIDTH: tl.constexpr,
    CODE: tl.constexpr,
    CHUNK: tl.constexpr,
    RUN: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    SHIFT: tl.constexpr,
    ASM: tl.constexpr,
    EVEN: tl.constexpr,
    PLANE: tl.constexpr,
):
    column = (c * CHUNK + PLANE * RUN)[:, :, None]
    at = tl.arange(0, RUN)[None, None, :]
    if EVEN:
        v = tl.load(x_line + column, mask=real_row, other=0.0)
    else:
        v = tl.load(x_line + column, mask=real_row & (column + at < WIDTH) & (c < last_chunk)[:, :, None], other=0.0)
    values = plane_values(low, high, x, CODE, PLANE, ZERO, ASM)
    v = tl.permute(v, (0, 2, 1))
    if GROUP == 0:
        sums = tl.dot(values, v, sums, input_precision="ieee")
    else:
        nth: tl.constexpr = PLANE * RUN // GROUP if CHUNK % GROUP == 0 else (0 if GROUP % CHUNK == 0 else PLANE)
        begins: tl.constexpr = PLANE == 0 if GROUP % CHUNK == 0 else CHUNK % GROUP != 0 or PLANE * RUN % GROUP == 0
        end: tl.constexpr = (PLANE + 1) * RUN
        ends: tl.constexpr = end == CHUNK if GROUP % CHUNK == 0 else CHUNK % GROUP != 0 or end % GROUP == 0
        if begins:
            part = tl.dot(values, v, input_precision="ieee")
        else:
            part = tl.dot(values, v, part, input_precision="ieee")
        if ends:
            scale = scales[nth].to(tl.float32)
            sums += part * scale[:, :, None]
            if SHIFT is not None:
                total = totals[nth]
                last = c * CHUNK + PLANE * RUN + RUN
                if CHUNK % GROUP == 0:
                    if not EVEN:
                        total = tl.where((last - GROUP < WIDTH) & (c < last_chunk), total, 0.0)
                elif GROUP % CHUNK == 0:
                    total = tl.where((c < last_chunk) & ((last % GROUP == 0) | (last >= WIDTH)), total, 0.0)
                else:
                    total = tl.where(
                        (c < last_chunk) & (last - RUN < WIDTH) & ((last % GROUP == 0) | (last >= WIDTH)), total, 0.0
                    )
                sums += _offset(shifts[nth], scale, ZERO, SHIFT)[:, :, None] * total[:, None, :]
    return sums, part


@triton.jit(do_not_specialize=["rows", "size", "stride"])
def _gemv_kernel(
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
    WAYS: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    tile = tl.program_id(0)
    split = tl.program_id(1)
    chunk: tl.constexpr = PLANES * RUN
    chunks: tl.constexpr = (WIDTH + chunk - 1) // chunk
    per_word: tl.constexpr = PLANES if WORDS == 1 else 4
    steps: tl.constexpr = (chunks + SPLITS * WAYS - 1) // (SPLITS * WAYS)
    EVEN: tl.constexpr = steps * SPLITS * WAYS * chunk == WIDTH
    outs: tl.constexpr = OUTS // 2 if GATED else OUTS
    index = tl.arange(0, OUTS)
    which = tile * outs + index % outs
    line = which + index // outs * size
    there = (which < size)[None, :]
    all_lines = size * 2 if GATED else size
    at = tl.arange(0, RUN)[None, None, :]
    code_line = words + line.to(tl.int64)[None, :, None] * (chunks * WORDS * RUN) + at
    row = tl.arange(0, ROWS)
    real_row = (row < rows)[None, :, None]
    x_line = x + row[None, :, None] * WIDTH + at
    way = tl.arange(0, WAYS)[:, None]
    first = split * steps * WAYS
    last_chunk = tl.minimum(chunks, first + steps * WAYS)
    sums = tl.zeros([WAYS, OUTS, ROWS], tl.float32)
    part = tl.zeros([WAYS, OUTS, ROWS], tl.float32)
    has_groups: tl.constexpr = GROUP != 0
    has_shifts: tl.constexpr = has_groups and SHIFT is not None
    by_line = line[None, :]
    if AHEAD:  # to L2, while the launch before this one ends
        begin = words + (tile * outs).to(tl.int64) * (chunks * WORDS * RUN) + first * (WORDS * RUN)
        prefetch(begin, chunks * WORDS * RUN * 2, outs, AHEAD)
        if GATED:
            prefetch(begin + size.to(tl.int64) * (chunks * WORDS * RUN), chunks * WORDS * RUN * 2, outs, AHEAD)
    scale = _by_group(scales + by_line, there, all_lines, first + way, WIDTH, chunk, RUN, GROUP, has_groups)
    shift = _by_group(shifts + by_line, there, all_lines, first + way, WIDTH, chunk, RUN, GROUP, has_shifts)
    wait(OVERLAP)
    sum_line = x_sums + row[None, :]
    total = _by_group(sum_line, (row < ROWS)[None, :], ROWS, first + way, WIDTH, chunk, RUN, GROUP, has_shifts)
    for step in tl.range(0, steps, num_stages=STAGES):
        c = first + step * WAYS + way
        n = c + WAYS
        next_scale = _by_group(scales + by_line, there, all_lines, n, WIDTH, chunk, RUN, GROUP, has_groups)
        next_shift = _by_group(shifts + by_line, there, all_lines, n, WIDTH, chunk, RUN, GROUP, has_shifts)
        next_total = _by_group(sum_line, (row < ROWS)[None, :], ROWS, n, WIDTH, chunk, RUN, GROUP, has_shifts)
        source = code_line + c[:, :, None] * (WORDS * RUN)
        if EVEN:
            mask = there[:, :, None]
        else:
            mask = there[:, :, None] & (c < last_chunk)[:, :, None]
        high = 0
        if WORDS > 1:
            high = tl.load(source + (WORDS - 1) * RUN, mask=mask, other=0)
        for w in tl.static_range(PLANES // per_word):
            low = tl.load(source + w * RUN, mask=mask, other=0)
            for p in tl.static_range(per_word):
                sums, part = _add_plane(
                    sums,
                    part,
                    low,
                    high,
                    x,
                    x_line,
                    real_row,
                    scale,
                    shift,
                    total,
                    c,
                    last_chunk,
                    WIDTH,
                    CODE,
                    chunk,
                    RUN,
                    GROUP,
                    ZERO,
                    SHIFT,
                    ASM,
                    EVEN,
                    w * per_word + p,
                )
        scale = next_scale
        shift = next_shift
        total = next_total
    sums = tl.sum(sums, axis=0)

    if SPLITS > 1:
        inner = index[:, None] * ROWS + row[None, :]
        mine = parts + tile * SPLITS * OUTS * ROWS + inner
        tl.store(mine + split * OUTS * ROWS, sums)
        tl.debug_barrier()
        before = tl.atomic_add(arrived + tile, 1, sem="acq_rel")
        if before < SPLITS - 1:
            return
        sums = tl.zeros([OUTS, ROWS], tl.float32)
        for number in range(SPLITS):
            sums += tl.load(mine + number * OUTS * ROWS, cache_modifier=".cg")
        tl.store(arrived + tile, 0)
    is_there = which < size
    is_real = row < rows
    if GROUP == 0:
        row_scale = tl.load(scales + line, mask=is_there, other=0.0).to(tl.float32)
        sums *= row_scale[:, None]
        if SHIFT is not None:
            row_shift = _offset(tl.load(shifts + line, mask=is_there, other=0), row_scale, ZERO, SHIFT)
            sums += row_shift[:, None] * tl.load(x_sums + row)[None, :]
    if BIAS:
        sums += tl.load(bias + line, mask=is_there, other=0.0).to(tl.float32)[:, None]
    if GATED:
        gate, up = tl.split(sums.reshape(2, outs, ROWS).permute(1, 2, 0))
        sums = activate(gate, SILU) * up
        which = tile * outs + tl.arange(0, outs)
    place = row[None, :] * stride + which[:, None]
    real = is_real[None, :] & (which < size)[:, None]
    if ONTO:
        sums += tl.load(out + place, mask=real, other=0.0).to(tl.float32)
    tl.store(out + place, sums.to(out.dtype.element_ty), mask=real)


_launch = Launcher(_gemv_kernel)


def coded_gemv(
    x: Tensor,
    part: CodedRows,
    out: Tensor,
    bias: Tensor | None = None,
    *,
    onto: bool = False,
    activation: Activation | None = None,
    tiling=(16, 4, 1, 3, 0),
    least=8,
) -> None:
    coding, (rows, width) = part.coding, x.shape
    size = part.rows // (1 if activation is None else 2)
    padded = max(least, power_of_2(rows))
    outs, ways, splits, stages, ahead = tiling
    tiles = -(-part.rows // outs)
    parts, arrived = out, out
    if splits > 1:
        parts = torch.empty(tiles * splits * outs * padded, dtype=torch.float32, device=x.device)
        arrived = _counters(x.device)
    x_sums = group_sums(x, coding.group, padded) if coding.shift else x
    code, shifts = coding.code, part.scales if part.shifts is None else part.shifts
    fused = (bias is not None, onto, activation is not None, activation == "silu")
    zero = 0 if coding.shift == "offsets" else code.zero
    if ahead:
        share = 2 * coding.words(width) // splits
        ahead = min(share, ahead) // 16 * 16 if size % outs == 0 and HAS_ASSEMBLY else 0
    form = (str(code), code.planes, code.words, coding.run, coding.group, zero, coding.shift)
    _launch(
        (tiles, splits, 1),
        (x.dtype, part.scales.dtype, out.dtype),
        (
            x,
            part.words,
            part.scales,
            shifts,
            x_sums,
            x if bias is None else bias,
            out,
            parts,
            arrived,
            rows,
            size,
            out.stride(0),
        ),
        (width, *form, HAS_ASSEMBLY and x.element_size() == 2, *fused, padded, outs, ways, splits, stages, ahead),
        num_warps=ways,
        num_stages=stages,
    )
