"""All that Penstock uses of torch beyond its documented API: operators that torch's own layers call, and the current
stream as an integer. Tried with torch 2.11 and 2.13."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.system.slow_paths import warn_slow_path


@cache
def stream_functions() -> tuple[Callable[[], int], Callable[[int], int]]:
    """The current CUDA device, and its current stream as the integer that launches take."""
    device = getattr(torch._C, "_cuda_getDevice", None)
    stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if device is None or stream is None:
        warn_slow_path("torch", "raw CUDA stream", "every launch takes microseconds longer")
        return torch.cuda.current_device, lambda index: int(torch.cuda.current_stream(index).cuda_stream)
    return device, stream


@cache
def has_onednn_linear() -> bool:
    """Whether oneDNN's product with a weight in its blocked layout is there, and right."""
    weight = torch.linspace(-1, 1, 16 * 16).view(16, 16)
    try:
        product = onednn_linear(weight[:2], onednn_weight(weight, 2))
        right = torch.allclose(product, F.linear(weight[:2], weight), atol=1e-5)
    except (AttributeError, RuntimeError, TypeError):  # no such operator, or one with other arguments
        right = False
    if not right:
        warn_slow_path("torch", "oneDNN product with packed weights", "decoding with float32 on the CPU is slower")
    return right


def onednn_weight(weight: Tensor, rows: int) -> Tensor:
    """The weight in the layout that suits so many rows of x."""
    blocked: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return blocked


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product with what `onednn_weight` gave."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


CUDNN_ARGUMENTS = ("query", "key", "value", "attn_bias", "compute_log_sumexp", "dropout_p", "is_causal")


@cache
def cudnn_attention() -> Callable[..., Any] | None:
    """cuDNN's attention, which also gives the logarithm of each softmax's sum."""
    try:
        operator = torch.ops.aten._scaled_dot_product_cudnn_attention
        arguments = tuple(argument.name for argument in operator.default._schema.arguments)
    except (AttributeError, RuntimeError):
        arguments = ()
    if arguments[: len(CUDNN_ARGUMENTS)] != CUDNN_ARGUMENTS or "scale" not in arguments:
        warn_slow_path("torch", "cuDNN attention", "long prompts are computed by our own kernel, more slowly")
        return None

    def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        """[1, heads, tokens, head_dim] -> the same, and the sums' logarithms."""
        mixed, mass, *_ = operator(q, k, v, None, True, 0.0, causal, False, scale=scale)
        return mixed, mass

    return attend


@cache
def float32_product() -> Callable[[Tensor, Tensor, Tensor], object]:
    """(x, w, out) -> x @ w of 16-bit matrices, written to `out` as float32 without rounding in between."""
    operator = getattr(torch.ops.aten.mm, "dtype_out", None)
    if operator is None:
        warn_slow_path("torch", "product of 16-bit matrices into float32", "logits are rounded to 16 bits first")
        return lambda x, w, out: out.copy_(x @ w)
    return lambda x, w, out: operator(x, w, torch.float32, out=out)


def fp8_product(x: Tensor, w: Tensor, scales: tuple[Tensor, Tensor], out: Tensor | None = None) -> Tensor:
    """x @ w of FP8 matrices, w by columns, in bfloat16. Scales: of both, or of each row of x [rows, 1] and each column
    of w [1, cols]."""
    x_scale, w_scale = scales
    product: Tensor = torch._scaled_mm(
        x, w, x_scale, w_scale, out_dtype=torch.bfloat16, use_fast_accum=True, **({} if out is None else {"out": out})
    )
    return product
