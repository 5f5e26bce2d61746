"""RMS norm, alone and with the residual sum that precedes it: one program per row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.launch import Launcher


@triton.jit
def _kernel(x, residual, weight, out, eps, WIDTH: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * WIDTH
    at = tl.arange(0, BLOCK)
    inside = at < WIDTH
    values = tl.load(x + row + at, mask=inside, other=0.0)
    if ADD:
        total = values.to(tl.float32) + tl.load(residual + row + at, mask=inside, other=0.0).to(tl.float32)
        values = total.to(values.dtype)
        tl.store(residual + row + at, values, mask=inside)
    wide = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / WIDTH + eps)
    scaled = wide * scale * tl.load(weight + at, mask=inside, other=0.0)
    tl.store(out + row + at, scaled.to(values.dtype), mask=inside)


_launch_kernel = Launcher(_kernel)


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    _launch(x, x, weight, out, eps, add=False)
    return out


def add_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The sum takes the place of `residual`, its norm that of `x`."""
    _launch(x, residual, weight, x, eps, add=True)
    return x, residual


def _launch(x: Tensor, residual: Tensor, weight: Tensor, out: Tensor, eps: float, *, add: bool) -> None:
    width = weight.shape[0]
    block = triton.next_power_of_2(width)
    warps = min(max(block // 512, 1), 16)
    rows = x.numel() // width
    _launch_kernel((rows, 1, 1), x.dtype, (x, residual, weight, out, eps), (width, add, block), num_warps=warps)
