"""Gemma 3, the text model: norms before and after attention and MLP and on q and k, windows on most layers.

In Hugging Face checkpoints its norms are stored as the difference from one; in GGUF files one has been added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from penstock.kernels.interface import Batch, Operations, Pages, Rotary
from penstock.model.layers import attention, decoder, mlp
from penstock.model.weights.map import Parameter, WeightMap, Weights, plus_one
from penstock.store.spec import ModelSpec

# ours -> Hugging Face, GGUF
LAYER_NORMS = {
    "attention_norm": ("input_layernorm", "attn_norm"),
    "post_attention_norm": ("post_attention_layernorm", "post_attention_norm"),
    "mlp_norm": ("pre_feedforward_layernorm", "ffn_norm"),
    "post_mlp_norm": ("post_feedforward_layernorm", "post_ffw_norm"),
}


def _layer_norms() -> tuple[Parameter, ...]:
    return tuple(
        decoder.norm(f"layers.{{layer}}.{name}", f"model.layers.{{layer}}.{hf}", f"blk.{{layer}}.{gguf}", plus_one)
        for name, (hf, gguf) in LAYER_NORMS.items()
    )


@dataclass(frozen=True, slots=True)
class Layer:
    attention: attention.Attention
    post_attention_norm: Tensor
    mlp_norm: Tensor
    mlp: mlp.Mlp
    post_mlp_norm: Tensor

    @classmethod
    def build(cls, spec: ModelSpec, number: int, weights: Weights, rotary: Rotary) -> Layer:
        return cls(
            attention.Attention.build(spec, number, weights, rotary),
            weights["post_attention_norm"],
            weights["mlp_norm"],
            mlp.Mlp.build(spec, weights),
            weights["post_mlp_norm"],
        )


class Gemma3(decoder.Decoder):
    weight_map: ClassVar[WeightMap] = WeightMap(
        (
            decoder.EMBEDDING,
            *attention.projections(),
            *attention.qk_norms(plus_one),
            *attention.OUTPUT,
            *mlp.GATE_UP,
            *mlp.DOWN,
            *_layer_norms(),
            decoder.norm("norm", "model.norm", "output_norm", plus_one),
            decoder.HEAD,
        ),
        # checkpoints of text and vision
        ignored=(r"(vision_tower|multi_modal_projector)\..*",),
        renamed=(("language_model.model.", "model."), ("language_model.lm_head.", "lm_head.")),
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
            x = ops.norm(x, layer.post_attention_norm, eps)
            x, residual = ops.add_norm(x, residual, layer.mlp_norm, eps)
            x = ops.norm(layer.mlp(ops, x), layer.post_mlp_norm, eps)
            x, residual = ops.add_norm(x, residual, next_norm, eps)
        return x
