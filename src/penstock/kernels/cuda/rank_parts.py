"""What one rank of several computes around the sums over all ranks (`kernels.cuda_rank_ops`)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait

BLOCK = 1024


@triton.jit(do_not_specialize=["scale", "first", "size"])
def _embed_kernel(tokens, table, out, scale, first, size, WIDTH: tl.constexpr, W: tl.constexpr, OVERLAP: tl.constexpr):
    wait(OVERLAP)
    let_next_begin(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, W)
    own = tl.load(tokens + row) - first
    inside = (own >= 0) & (own < size) & (column < WIDTH)
    vector = tl.load(table + own * WIDTH + column, mask=inside, other=0.0)
    tl.store(out + row * WIDTH + column, (vector.to(tl.float32) * scale).to(vector.dtype), mask=column < WIDTH)


@triton.jit(do_not_specialize=["total"])
def _add_kernel(
    y, bias, out, total, WIDTH: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr
):
    let_next_begin(OVERLAP)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    wait(OVERLAP)
    result = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        result += tl.load(bias + at % WIDTH, mask=inside, other=0.0).to(tl.float32)
    result += tl.load(out + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


_launch_embed, _launch_add = Launcher(_embed_kernel), Launcher(_add_kernel)


def embed(tokens: Tensor, table: Tensor, first: int, scale: float) -> Tensor:
    """tokens [n] int64 -> [n, width]: rows of `table`, which begins with token `first`; zeros for tokens that it does
    not have."""
    (size, width), count = table.shape, len(tokens)
    out = torch.empty(count, width, dtype=table.dtype, device=table.device)
    arguments, constants = (tokens, table, out, scale, first, size), (width, power_of_2(width))
    _launch_embed((count, 1, 1), table.dtype, arguments, constants, num_warps=4)
    return out


def add(y: Tensor, bias: Tensor | None, onto: Tensor) -> Tensor:
    """`onto` [n, width] with y, and a bias [width], added in place."""
    total, width = onto.numel(), onto.shape[1]
    arguments, constants = (y, y if bias is None else bias, onto, total), (width, bias is not None, BLOCK)
    _launch_add((-(-total // BLOCK), 1, 1), onto.dtype, arguments, constants, num_warps=4)
    return onto
