"""Products with both sides in 8 bits, FP8 or int8, for up to 128 rows: as `skinny_gemm`, with scales.

The inputs have a scale for each token (`quantize_inputs`), the weight one for each row (`kernels.coded`).
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.coded import CodedRows
from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait
from penstock.kernels.cuda.product_end import LARGE_OUTS, LONG, add_up, finish, hand_in, split_buffers
from penstock.kernels.cuda.quantize_inputs import Octets
from penstock.kernels.interface import Activation


class Tiling(NamedTuple):
    outs: int  # as in `skinny_gemm`
    step: int
    splits: int
    warps: int
    stages: int


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

    total = sums.to(tl.float32)
    if SPLITS > 1:
        if hand_in(total, parts, arrived, OUTS, ROWS, SPLITS) < SPLITS - 1:
            return
        total = add_up(parts, arrived, OUTS, ROWS, SPLITS)
    if GROUP == 0:
        scale = tl.load(scales + line, mask=there, other=0.0)
        total *= scale[:, None] * tl.load(x_scales + row, mask=real_row, other=0.0)[None, :]
    finish(total, bias, out, tile, row.to(tl.int64), rows, size, stride, BIAS, ONTO, GATED, SILU, ROWS, OUTS)


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
    outs, step, splits, warps, stages = tiling or _tiling(rows, part.rows, width)
    tiles = -(-part.rows // outs)
    parts, arrived = split_buffers(out, tiles, splits, outs * padded)
    fused = (bias is not None, onto, activation is not None, activation == "silu")
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
        (width, part.coding.group, *fused, padded, outs, step, splits),
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
