"""Products of many rows with both sides in 8 bits: FP8 or int8 tensor cores, from torch, and what follows in one pass.

The inputs have a scale for each token, the weight one for each row (`quantize_inputs`, `kernels.coded`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.coded import Code, CodedMatrix, CodedRows
from penstock.kernels.cuda.gate import activate
from penstock.kernels.cuda.launch import Launcher, let_next_begin, wait
from penstock.kernels.cuda.quantize_inputs import Octets
from penstock.kernels.interface import Activation

BLOCK = 1024
DTYPES = {Code.E4M3: torch.float8_e4m3fn, Code.S8: torch.int8}


@triton.jit(do_not_specialize=["stride"])
def _finish_kernel(
    product,
    x_scales,
    scales,
    bias,
    out,
    stride,
    SIZE: tl.constexpr,
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
    scale = tl.load(scales + at, mask=inside, other=0.0)
    wait(OVERLAP)
    factor = tl.load(x_scales + row)
    line = product + row * (2 * SIZE if GATED else SIZE)
    v = tl.load(line + at, mask=inside, other=0.0).to(tl.float32) * (scale * factor)
    if BIAS:
        v += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    if GATED:
        up = tl.load(line + SIZE + at, mask=inside, other=0.0).to(tl.float32)
        up *= tl.load(scales + SIZE + at, mask=inside, other=0.0) * factor
        if BIAS:
            up += tl.load(bias + SIZE + at, mask=inside, other=0.0).to(tl.float32)
        v = activate(v, SILU) * up
    place = out + row * stride + at
    if ONTO:
        v += tl.load(place, mask=inside, other=0.0).to(tl.float32)
    tl.store(place, v.to(out.dtype.element_ty), mask=inside)


_launch_finish = Launcher(_finish_kernel)


def multiplies(matrix: CodedMatrix) -> bool:
    """Whether the matrix can be multiplied as it is stored, in 8 bits on both sides."""
    inputs = matrix.inputs
    return inputs is not None and inputs.group == 0 and all(_is_plain(part, inputs.dtype) for part in matrix.parts)


def _is_plain(part: CodedRows, dtype: torch.dtype) -> bool:
    coding = part.coding
    sizes = part.rows % 16 == 0 and coding.group == 0 and coding.shift is None and coding.scale == torch.float32
    return sizes and DTYPES.get(coding.code) == dtype


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
    size = part.rows // (1 if activation is None else 2)
    weight = part.words.view(x.values.dtype).t()
    if x.values.dtype == torch.int8:
        product = torch._int_mm(x.values, weight)
    else:
        one = _one(x.values.device)
        product = torch._scaled_mm(
            x.values, weight, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
        )
    fused = (bias is not None, onto, activation is not None, activation == "silu")
    _launch_finish(
        (len(x.values), -(-size // BLOCK), 1),
        (product.dtype, out.dtype),
        (product, x.scales, part.scales, part.scales if bias is None else bias, out, out.stride(0)),
        (size, *fused, BLOCK),
        num_warps=4,
    )


_ONES: dict[torch.device, Tensor] = {}


def _one(device: torch.device) -> Tensor:
    if device not in _ONES:
        _ONES[device] = torch.ones((), device=device)
    return _ONES[device]
