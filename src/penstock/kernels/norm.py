"""RMS norm, alone and with the residual sum that precedes it. Weights are float32, and so is the arithmetic."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x.float(), weight.shape, weight, eps).to(x.dtype)


def add_reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = residual.add_(x)
    return reference(total, weight, eps), total
