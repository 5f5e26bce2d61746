"""RMS norm, alone or added to the residual: one program per row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait
from penstock.kernels.interface import Norm


@triton.jit
def _kernel(x, weight, out, eps, WIDTH: tl.constexpr, ONTO: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    let_next_begin(OVERLAP)
    row = tl.program_id(0).to(tl.int64) * WIDTH
    at = tl.arange(0, BLOCK)
    inside = at < WIDTH
    gains = tl.load(weight + at, mask=inside, other=0.0)
    wait(OVERLAP)
    wide = tl.load(x + row + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / WIDTH + eps)
    result = wide * scale * gains
    if ONTO:
        result = result.to(out.dtype.element_ty).to(tl.float32)
        result += tl.load(out + row + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row + at, result.to(out.dtype.element_ty), mask=inside)


_launch = Launcher(_kernel)


def norm(x: Tensor, norm: Norm, onto: Tensor | None = None) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x) if onto is None else onto
    width = norm.weight.shape[0]
    block = power_of_2(width)
    warps = min(max(block // 512, 1), 16)
    rows = x.numel() // width
    _launch((rows, 1, 1), x.dtype, (x, norm.weight, out, norm.eps), (width, onto is not None, block), num_warps=warps)
    return out
