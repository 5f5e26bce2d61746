"""Medusa heads in torch: head i predicts the token i + 1 places after the next one, from one hidden state of the
target. A head is a chain of residual blocks and an output head of its own: blocks only add, so with the target's output
head they could not take back what the state says about the next token."""

from __future__ import annotations

import torch
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
        """`head`: rows of the target's output head, [draft vocabulary, hidden], which all heads start with."""
        super().__init__()
        self.heads = nn.ModuleList(
            nn.Sequential(*(ResidualBlock(hidden_size) for _ in range(blocks)), ScaledLinear(hidden_size, len(head)))
            for _ in range(heads)
        )
        with torch.no_grad():
            for one in self.heads:
                one[-1].weight.copy_(head)

    def forward(self, states: Tensor) -> list[Tensor]:
        """states [..., hidden] after the final norm -> logits of each head."""
        return [head(states) for head in self.heads]

    def logits(self, place: int, states: Tensor, places: Tensor) -> Tensor:
        """Of one head, over some places of the draft's vocabulary."""
        *blocks, output = self.heads[place]
        for block in blocks:
            states = block(states)
        return F.linear(states / output.input_scale, output.weight[places])

    @torch.no_grad()
    def start_from(self, scale: Tensor) -> None:
        """`scale` [hidden]: of the channels of hidden states."""
        for head in self.heads:
            for block in head[:-1]:
                block.linear.rescale(input_scale=scale)
            head[-1].rescale(input_scale=scale)
            head[-1].weight.mul_(scale)
