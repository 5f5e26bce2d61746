"""Matrix product with a weight.

On x86 a float32 weight is brought into oneDNN's blocked layout when it is loaded. For the few rows of a decode step a
product then takes about half the time of torch's own over the plain layout, and never more.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.kernels import torch_internals

# The layout is chosen for this many rows of x; measured, one chosen for 16 to 512 serves 1 to 512 rows equally well.
LAYOUT_ROWS = 64


def reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight, bias)


def prefers_onednn(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether weights of this type are to be in oneDNN's layout."""
    built_in: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    is_x86 = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    suits = device.type == "cpu" and dtype == torch.float32 and built_in and is_x86
    return suits and torch_internals.has_onednn_linear()


def to_onednn(weight: Tensor) -> Tensor:
    """The weight as an opaque tensor that `onednn` reads."""
    return torch_internals.onednn_weight(weight, LAYOUT_ROWS)


def onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`reference` for a weight that `to_onednn` made."""
    return torch_internals.onednn_linear(x, weight, bias)
