"""Llama 2 and 3, SmolLM, and all that differ from them in flags of the spec or in the names of tensors only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from penstock.kernels.interface import Batch, Operations, Pages, Rotary
from penstock.model.layers import attention, decoder, mlp
from penstock.model.weights.map import WeightMap, Weights, halves_from_pairs
from penstock.store.spec import ModelSpec

FRAME = (
    decoder.EMBEDDING,
    decoder.norm("layers.{layer}.attention_norm", "model.layers.{layer}.input_layernorm", "blk.{layer}.attn_norm"),
    decoder.norm("layers.{layer}.mlp_norm", "model.layers.{layer}.post_attention_layernorm", "blk.{layer}.ffn_norm"),
    decoder.norm("norm", "model.norm", "output_norm"),
    decoder.HEAD,
)


@dataclass(frozen=True, slots=True)
class Layer:
    attention: attention.Attention
    mlp_norm: Tensor
    mlp: mlp.Mlp

    @classmethod
    def build(cls, spec: ModelSpec, number: int, weights: Weights, rotary: Rotary) -> Layer:
        return cls(
            attention.Attention.build(spec, number, weights, rotary), weights["mlp_norm"], mlp.Mlp.build(spec, weights)
        )


class Llama(decoder.Decoder):
    weight_map: ClassVar[WeightMap] = WeightMap(
        (*FRAME, *attention.projections(halves_from_pairs), *attention.OUTPUT, *mlp.GATE_UP, *mlp.DOWN)
    )

    def __init__(self, spec: ModelSpec, weights: Weights, *, device: torch.device, context: int) -> None:
        super().__init__(spec, weights, device=device, context=context)
        self.layers = [
            Layer.build(spec, number, weights.layer(number), self.rotary(number)) for number in range(spec.num_layers)
        ]

    def forward(self, ops: Operations, batch: Batch, pages: Sequence[Pages]) -> Tensor:
        eps = self.spec.norm_eps
        residual = ops.embed(batch.tokens, self.embedding, self.embedding_scale)
        x = ops.norm(residual, self.first_norm, eps)
        for layer, next_norm, layer_pages in zip(self.layers, self.next_norms, pages, strict=True):
            x = layer.attention(ops, x, batch, layer_pages)
            if batch.wanted is not None and layer is self.layers[-1]:
                x, residual = x[batch.wanted], residual[batch.wanted]
            x, residual = ops.add_norm(x, residual, layer.mlp_norm, eps)
            x = layer.mlp(ops, x)
            x, residual = ops.add_norm(x, residual, next_norm, eps)
        return x
