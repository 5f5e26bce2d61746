"""The inputs of a product in 8 bits, with a scale for each token, and the norm before it in the same pass.

Columns are put into the order in which `kernels.coded` stores the octets of a row: those of a chunk's two planes by
turns. So the octets of weight and inputs are multiplied as they lie in memory.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.coded import LONGEST_RUN
from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait
from penstock.kernels.interface import Norm

LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
CHUNK = 2 * LONGEST_RUN


class Octets(NamedTuple):
    values: Tensor  # [rows, width], a multiple of `CHUNK`; int8 or float8_e4m3fn
    scales: Tensor  # [1, rows] float32, or [width / CHUNK, rows] of groups of that many columns


@triton.jit(do_not_specialize=["rows"])
def _kernel(
    x,
    gains,
    values,
    scales,
    rows,
    eps,
    fixed,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    NORM: tl.constexpr,
    FIXED: tl.constexpr,
    GROUPS: tl.constexpr,
    LARGEST: tl.constexpr,
    FLOAT: tl.constexpr,
    RUN: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A row. FIXED: the scale is `fixed`."""
    let_next_begin(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    column = place // (2 * RUN) * (2 * RUN) + place % 2 * RUN + place % (2 * RUN) // 2
    inside = column < WIDTH
    if NORM:
        gain = tl.load(gains + column, mask=inside, other=0.0)
    wait(OVERLAP)
    v = tl.load(x + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        v *= tl.rsqrt(tl.sum(v * v, axis=0) / WIDTH + eps) * gain
        v = v.to(x.dtype.element_ty).to(tl.float32)  # as the product with 16 bits has it
    if GROUPS == 1:
        scale = fixed if FIXED else tl.maximum(tl.max(tl.abs(v), axis=0), 1e-12) / LARGEST
        tl.store(scales + row, scale)
        v /= scale
    else:
        grouped = tl.reshape(v, (BLOCK // (2 * RUN), 2 * RUN))
        group_scale = tl.maximum(tl.max(tl.abs(grouped), axis=1), 1e-12) / LARGEST
        group = tl.arange(0, BLOCK // (2 * RUN))
        tl.store(scales + group * rows + row, group_scale, mask=group < GROUPS)
        v = tl.reshape(grouped / group_scale[:, None], (BLOCK,))
    v = tl.minimum(tl.maximum(v, -LARGEST), LARGEST)
    if not FLOAT:
        v = (v + 12582912.0) - 12582912.0  # 1.5 * 2 ** 23: to the nearest whole number
    tl.store(values + row * PADDED + place, v.to(values.dtype.element_ty), mask=place < PADDED)


_launch = Launcher(_kernel)


def quantize_inputs(
    x: Tensor, dtype: torch.dtype, norm: Norm | None = None, *, fixed: float | None = None, grouped: bool = False
) -> Octets:
    """`fixed`: the scale of all tokens, if there is one. `grouped`: scales for `CHUNK` columns each."""
    rows, width = x.shape
    chunks = -(-width // CHUNK)
    padded, groups = chunks * CHUNK, chunks if grouped else 1
    values = torch.empty(rows, padded, dtype=dtype, device=x.device)
    scales = torch.empty(groups, rows, dtype=torch.float32, device=x.device)
    gains, eps = norm or (scales, 0.0)
    block = power_of_2(padded)
    fused = (norm is not None, fixed is not None, groups)
    _launch(
        (rows, 1, 1),
        (x.dtype, dtype),
        (x, gains, values, scales, rows, eps, fixed or 0.0),
        (width, padded, *fused, LARGEST[dtype], dtype != torch.int8, LONGEST_RUN, block),
        num_warps=min(max(block // 512, 1), 16),
    )
    return Octets(values, scales)
