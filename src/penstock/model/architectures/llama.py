"""Llama 2 and 3, SmolLM, and all that differ from them in the spec or in the names of tensors only.

tokens ─► embedding ─► layers ─► norm ─► head ─► logits        (`Decoder`)

layer:  x ─┬─► norm ─► qkv ─► attention ─► output ─► + ─┬─► norm ─► gate, up ─► activation(gate) * up ─► down ─► +
           └───────────────────────────────────────────┘└──────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kernels.interface import Operations
from penstock.model.layers.build import LayerBuilder
from penstock.model.layers.decoder import Decoder
from penstock.model.layers.step import LayerStep
from penstock.model.weights import names
from penstock.model.weights.map import WeightMap, halves_from_pairs

if TYPE_CHECKING:
    from torch import Tensor

COMMON = (
    names.EMBEDDING,
    names.layer_norm("attention_norm", "input_layernorm", "attn_norm"),
    names.layer_norm("mlp_norm", "post_attention_layernorm", "ffn_norm"),
    names.final_norm(),
    names.HEAD,
)


class LlamaLayer:
    """Pre-norm: x + attention(norm(x)), then x + MLP(norm(x)). Norms are part of the products that read them, and sums
    of those that give them (`onto`), so that kernels can fuse them."""

    def __init__(self, build: LayerBuilder) -> None:
        self.qkv = build.linear("qkv", norm=build.norm("attention_norm"))
        self.attention = build.attention()
        self.output = build.linear("output", reduce=True)
        self.gate_up = build.linear("gate_up", norm=build.norm("mlp_norm"), gate=build.spec.activation)
        self.down = build.linear("down", reduce=True)

    def forward(self, ops: Operations, x: Tensor, step: LayerStep) -> Tensor:
        mixed = self.attention(ops, ops.linear(x, self.qkv), step)
        mixed, x = step.select(mixed, x)
        x = ops.linear(mixed, self.output, onto=x)
        return ops.linear(ops.linear(x, self.gate_up), self.down, onto=x)


class Llama(Decoder):
    layer = LlamaLayer
    weight_map = WeightMap(
        (
            *COMMON,
            *names.qkv_projection(qk_from_gguf=halves_from_pairs),
            *names.OUTPUT_PROJECTION,
            *names.GATE_UP_PROJECTION,
            *names.DOWN_PROJECTION,
        )
    )
