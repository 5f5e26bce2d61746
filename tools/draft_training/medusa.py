"""Medusa heads in torch: head i predicts the token i + 1 places after the next one, from one hidden state of the
target. A head is a chain of residual blocks; the target's own output head reads it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from draft_training.layers import ScaledLinear


class ResidualBlock(nn.Module):
    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = ScaledLinear(hidden_size, hidden_size, bias=True)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class Medusa(nn.Module):
    def __init__(self, hidden_size: int, head: Tensor, *, heads: int, blocks: int) -> None:
        """`head`: rows of the target's output head, [draft vocabulary, hidden]."""
        super().__init__()
        self.heads = nn.ModuleList(
            nn.Sequential(*(ResidualBlock(hidden_size) for _ in range(blocks))) for _ in range(heads)
        )
        self.register_buffer("head", head, persistent=False)

    def forward(self, states: Tensor) -> list[Tensor]:
        """states [..., hidden] after the final norm -> logits of each head."""
        return [head(states) @ self.head.T for head in self.heads]

    def start_from(self, scale: Tensor) -> None:
        """`scale` [hidden]: of the channels of hidden states."""
        for head in self.heads:
            for block in head:
                block.linear.rescale(input_scale=scale)
