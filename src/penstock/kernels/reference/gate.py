"""The gated activation of an MLP."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from penstock.kernels.interface import Activation


def reference(gate_up: Tensor, activation: Activation) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    active = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
    return active.mul_(up)
