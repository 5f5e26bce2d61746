"""A decoder: embedding, layers of attention and MLP around a residual, final norm, output head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from penstock.kernels.interface import Batch, Norm, Operations, Pages
from penstock.kernels.reference import linear
from penstock.model.layers.attention import Attention
from penstock.model.layers.mlp import Mlp
from penstock.model.layers.rope import rotary
from penstock.model.weights.map import Parameter, Part, Transform, WeightMap, Weights
from penstock.store.spec import ModelSpec

EMBEDDING = Parameter(
    "embedding", "table", (Part("model.embed_tokens.weight", "token_embd.weight", "vocab"),), "hidden"
)
HEAD = Parameter(
    "head", "matrix", (Part("lm_head.weight", "output.weight", "vocab"),), "hidden", exists=lambda spec: not spec.tied
)


def norm(name: str, hf: str, gguf: str, from_hf: Transform | None = None) -> Parameter:
    return Parameter(name, "norm", (Part(f"{hf}.weight", f"{gguf}.weight", "hidden", from_hf=from_hf),))


@dataclass(frozen=True, slots=True)
class Layer:
    attention: Attention
    mlp: Mlp


class Decoder:
    """Base of the architectures, which differ in their weights: what a layer has, and what it is called. Owns the
    weights; the pages are the caller's."""

    weight_map: ClassVar[WeightMap]

    def __init__(self, spec: ModelSpec, weights: Weights, *, device: torch.device, context: int) -> None:
        self.spec = spec
        self.embedding = weights.matrix("embedding")
        self.embedding_scale = float(spec.embedding_scale)
        self.head = self.embedding if spec.tied else weights.matrix("head")
        self.num_bytes = weights.num_bytes
        if isinstance(self.embedding, Tensor):
            self.embedding_scale = torch.tensor(spec.embedding_scale, dtype=self.embedding.dtype).item()
            if spec.tied and linear.packs(self.embedding.dtype, device):
                self.head = linear.pack(self.embedding)
                self.num_bytes += self.embedding.nbytes
        self.norm = Norm(weights["norm"], spec.norm_eps)
        self._rotary = rotary(spec.rope, context, device)
        self._local_rotary = rotary(spec.local_rope, context, device) if spec.local_rope else self._rotary
        self.layers = [self._layer(number, weights.layer(number)) for number in range(spec.num_layers)]

    def forward(self, ops: Operations, batch: Batch, pages: Sequence[Pages]) -> Tensor:
        """Hidden states after the final norm, [tokens, hidden], or of the wanted ones alone: beyond the last attention
        nobody reads the others. `pages` is by layer; keys and values are written."""
        residual = ops.embed(batch.tokens, self.embedding, self.embedding_scale)
        for layer, layer_pages in zip(self.layers, pages, strict=True):
            wanted = batch.wanted if layer is self.layers[-1] else None
            residual = layer.attention(ops, residual, batch, layer_pages, wanted)
            residual = layer.mlp(ops, residual)
        return ops.norm(residual, self.norm)

    def _layer(self, number: int, weights: Weights) -> Layer:
        rotary = self._local_rotary if self.spec.window(number) else self._rotary
        return Layer(Attention.build(self.spec, number, weights, rotary), Mlp.build(self.spec, weights))
