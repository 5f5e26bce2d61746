"""Products of many rows with both sides in FP8, by a library, and what follows in one pass.

The inputs have a scale for each token, the weight one for each row, as for `octet_gemm`.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.coded import CodedRows
from penstock.kernels.cuda.gate import activate
from penstock.kernels.cuda.launch import Launcher, let_next_begin, wait
from penstock.kernels.cuda.quantize_inputs import Octets
from penstock.kernels.interface import Activation
from penstock.kernels.torch_internals import fp8_product

BLOCK = 1024
BY_ROW = 512  # rows of x from which on the library applies all scales; for fewer it is faster without


@triton.jit(do_not_specialize=["stride"])
def _finish_kernel(
    product,
    x_scales,
    scales,
    bias,
    out,
    stride,
    SIZE: tl.constexpr,
    SCALED: tl.constexpr,
    BIAS: tl.constexpr,
    ONTO: tl.constexpr,
    GATED: tl.constexpr,
    SILU: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE
    wait(OVERLAP)
    line = product + row * (2 * SIZE if GATED else SIZE)
    v = tl.load(line + at, mask=inside, other=0.0).to(tl.float32)
    if SCALED:
        factor = tl.load(x_scales + row)
        v *= tl.load(scales + at, mask=inside, other=0.0) * factor
    if BIAS:
        v += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    if GATED:
        up = tl.load(line + SIZE + at, mask=inside, other=0.0).to(tl.float32)
        if SCALED:
            up *= tl.load(scales + SIZE + at, mask=inside, other=0.0) * factor
        if BIAS:
            up += tl.load(bias + SIZE + at, mask=inside, other=0.0).to(tl.float32)
        v = activate(v, SILU) * up
    place = out + row * stride + at
    if ONTO:
        v += tl.load(place, mask=inside, other=0.0).to(tl.float32)
    tl.store(place, v.to(out.dtype.element_ty), mask=inside)


_launch_finish = Launcher(_finish_kernel)


def scaled_gemm(
    x: Octets,
    part: CodedRows,
    out: Tensor,
    bias: Tensor | None = None,
    *,
    onto: bool = False,
    activation: Activation | None = None,
) -> None:
    """As `coded_gemm`."""
    size, rows = part.rows // (1 if activation is None else 2), len(x.values)
    weight, one = part.words.view(torch.float8_e4m3fn).t(), _one(x.values.device)
    by_row = rows >= BY_ROW and out.dtype == torch.bfloat16
    scales = (x.scales.view(-1, 1), part.scales.view(1, -1)) if by_row else (one, one)
    fused = (bias is not None, onto, activation is not None, activation == "silu")
    if by_row and not any(fused) and out.is_contiguous():
        fp8_product(x.values, weight, scales, out)
        return
    product = fp8_product(x.values, weight, scales)
    _launch_finish(
        (rows, -(-size // BLOCK), 1),
        (product.dtype, out.dtype),
        (product, x.scales, part.scales, part.scales if bias is None else bias, out, out.stride(0)),
        (size, not by_row, *fused, BLOCK),
        num_warps=4,
    )


@cache
def _one(device: torch.device) -> Tensor:
    return torch.ones((), device=device)
