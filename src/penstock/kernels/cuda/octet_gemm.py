"""Products with both sides in 8 bits, FP8 or int8, for up to 128 rows: as `skinny_gemm`, with scales.

The inputs have a scale for each token (`quantize_inputs`), the weight one for each row (`kernels.coded`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.coded import CodedRows
from penstock.kernels.cuda.coded_gemm import prefetch, split_counters
from penstock.kernels.cuda.gate import activate
from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait
from penstock.kernels.cuda.quantize_inputs import Octets
from penstock.kernels.interface import Activation

LARGE_OUTS = 128 * 132  # rows of a weight from which on tiles may be large
LONG = 8192  # columns


class Tiling(NamedTuple):
    outs: int
    step: int
    splits: int
    warps: int
    stages: int
    ahead: int = 0


@triton.jit(do_not_specialize=["rows", "size", "stride", "blocks"])
def _kernel(
    x,
    x_scales,
    weight,
    scales,
    bias,
    out,
    parts,
    arrived,
    rows,
    size,
    stride,
    blocks,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    BIAS: tl.constexpr,
    ONTO: tl.constexpr,
    GATED: tl.constexpr,
    SILU: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    STEP: tl.constexpr,
    SPLITS: tl.constexpr,
    AHEAD: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    tile = tl.program_id(0) // blocks  # the blocks of x by turns: the weight is read once, x stays in the L2 cache
    split = tl.program_id(1)
    share: tl.constexpr = WIDTH // SPLITS
    outs: tl.constexpr = OUTS // 2 if GATED else OUTS
    index = tl.arange(0, OUTS)
    which = tile * outs + index % outs
    there = which < size
    line = which + index // outs * size
    source = weight + line.to(tl.int64)[:, None] * WIDTH + split * share
    column = tl.arange(0, ROWS)
    row = tl.program_id(0) % blocks * ROWS + column
    real_row = row < rows
    x_line = x + row.to(tl.int64)[:, None] * WIDTH + split * share
    kind: tl.constexpr = tl.int32 if x.dtype.element_ty == tl.int8 else tl.float32
    sums = tl.zeros([OUTS, ROWS], tl.float32 if GROUP else kind)
    if AHEAD:
        begin = weight + (tile * outs).to(tl.int64) * WIDTH + split * share
        prefetch(begin, WIDTH, outs, AHEAD)
        if GATED:
            prefetch(begin + size.to(tl.int64) * WIDTH, WIDTH, outs, AHEAD)
    wait(OVERLAP)
    for first in range(0, share, STEP):
        at = first + tl.arange(0, STEP)[None, :]
        w = tl.load(source + at, mask=there[:, None], other=0.0)
        v = tl.load(x_line + at, mask=real_row[:, None], other=0.0)
        if GROUP:
            part = tl.dot(w, v.T, out_dtype=kind).to(tl.float32)
            group = (split * share + first) // GROUP
            x_scale = tl.load(x_scales + group * rows + row, mask=real_row, other=0.0)
            group_scale = tl.load(scales + line * (WIDTH // GROUP) + group, mask=there, other=0.0)
            sums += part * group_scale[:, None] * x_scale[None, :]
        else:
            sums = tl.dot(w, v.T, sums, out_dtype=kind)

    if SPLITS > 1:  # split-K: the last program adds up all parts, in their order
        inner = index[:, None] * ROWS + column[None, :]
        mine = parts + tile * SPLITS * OUTS * ROWS + inner
        tl.store(mine + split * OUTS * ROWS, sums.to(tl.float32))
        tl.debug_barrier()
        before = tl.atomic_add(arrived + tile, 1, sem="acq_rel")
        if before < SPLITS - 1:
            return
        total = tl.zeros([OUTS, ROWS], tl.float32)
        for number in range(SPLITS):
            total += tl.load(mine + number * OUTS * ROWS, cache_modifier=".cg")
        tl.store(arrived + tile, 0)
    else:
        total = sums.to(tl.float32)
    if GROUP == 0:
        scale = tl.load(scales + line, mask=there, other=0.0)
        total *= scale[:, None] * tl.load(x_scales + row, mask=real_row, other=0.0)[None, :]
    if BIAS:
        total += tl.load(bias + line, mask=there, other=0.0).to(tl.float32)[:, None]
    if GATED:
        gate, up = tl.split(total.reshape(2, outs, ROWS).permute(1, 2, 0))
        total = activate(gate, SILU) * up
        which = tile * outs + tl.arange(0, outs)
    place = row.to(tl.int64)[None, :] * stride + which[:, None]
    real = real_row[None, :] & (which < size)[:, None]
    if ONTO:
        total += tl.load(out + place, mask=real, other=0.0).to(tl.float32)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=real)


_launch = Launcher(_kernel)


def octet_gemm(
    x: Octets,
    part: CodedRows,
    out: Tensor,
    bias: Tensor | None = None,
    *,
    onto: bool = False,
    activation: Activation | None = None,
    tiling: Tiling | None = None,
) -> None:
    """As `coded_gemm`."""
    values, x_scales = x
    weight = part.words.view(values.dtype)
    rows, width = values.shape
    size = part.rows // (1 if activation is None else 2)
    padded = min(max(16, power_of_2(rows)), 128)
    blocks = -(-rows // padded)
    outs, step, splits, warps, stages, ahead = tiling or _tiling(rows, part.rows, width)
    tiles = -(-part.rows // outs)
    parts, arrived = x_scales, x_scales
    if splits > 1:
        parts = torch.empty(tiles * splits * outs * padded, dtype=torch.float32, device=out.device)
        arrived = split_counters(out.device)
    fused = (bias is not None, onto, activation is not None, activation == "silu")
    if ahead:
        ahead = min(width // splits, ahead) // 16 * 16 if size % outs == 0 else 0
    _launch(
        (tiles * blocks, splits, 1),
        (values.dtype, out.dtype),
        (
            values,
            x_scales,
            weight,
            part.scales,
            x_scales if bias is None else bias,
            out,
            parts,
            arrived,
            rows,
            size,
            out.stride(0),
            blocks,
        ),
        (width, part.coding.group, *fused, padded, outs, step, splits, ahead),
        num_warps=warps,
        num_stages=stages,
    )


def _tiling(rows: int, outs: int, width: int) -> Tiling:
    if rows > 128:
        return Tiling(128, 128, 1, 8, 4)
    if outs >= LARGE_OUTS:
        return Tiling(128, 128, 1, 8, 3) if rows > 32 else Tiling(64, 256 if width % 256 == 0 else 128, 1, 4, 4)
    splits = 4 if width > LONG else 2
    return Tiling(64, 128, splits if width % (splits * 128) == 0 else 1, 4, 4)
