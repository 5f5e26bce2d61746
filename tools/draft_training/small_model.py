"""A small Llama with the target's vocabulary: its embedding, its output head, and a few layers of its own, which start
as layers of the target."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from draft_training.layers import DecoderLayer, LayerCache, Norm
from penstock.store.spec import ModelSpec


class SmallModel(nn.Module):
    def __init__(self, spec: ModelSpec, head: Tensor, norm: Tensor) -> None:
        """`spec` is the small model's; `head`: rows of the target's output head, [draft vocabulary, hidden]."""
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(spec) for _ in range(spec.num_layers))
        self.norm = Norm(spec)
        self.norm.weight.data.copy_(norm)
        self.register_buffer("head", head, persistent=False)

    def advance(self, embedded: Tensor, step: int, caches: list[LayerCache]) -> Tensor:
        """The hidden states after the final norm."""
        x = embedded
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, step, cache)
        out: Tensor = self.norm(x)
        return out

    def logits(self, hidden: Tensor, places: Tensor | None = None) -> Tensor:
        return hidden @ (self.head if places is None else self.head[places]).T

    @torch.no_grad()
    def start_from(self, layers: list[dict[str, Tensor]]) -> None:
        """Parameters of the target's layers, by their names here."""
        for layer, tensors in zip(self.layers, layers, strict=True):
            layer.load_state_dict(tensors, strict=False)
