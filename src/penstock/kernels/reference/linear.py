"""Matrix product with a weight.

On x86 a float32 weight is packed at load into oneDNN's blocked layout. For the few rows of a decode step that takes
about half the time of torch's own path over the plain layout, and never more; a weight is read a million times and
packed once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# The layout is chosen for this many rows of x; measured, one chosen for 16 to 512 serves 1 to 512 rows equally well.
PACK_ROWS = 64


def reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight, bias)


def packs(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether `pack` gives such weights another form."""
    built_in: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    is_x86 = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    return device.type == "cpu" and dtype == torch.float32 and built_in and is_x86


def pack(weight: Tensor) -> Tensor:
    """The weight in the form that `linear` reads fastest; the weight itself where there is nothing better."""
    if not packs(weight.dtype, weight.device):
        return weight
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS)
    return packed


def packed(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`reference` for a weight that `pack` has made opaque."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product
