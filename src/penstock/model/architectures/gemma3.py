"""Gemma 3, the text model: sandwich norms, head norms on q and k, windows on most layers.

    layer:  x ─┬─► norm ─► qkv ─► attention ─► output ─► norm ─► + ─┬─► norm ─► gate, up ─► … ─► down ─► norm ─► +
               └───────────────────────────────────────────────────┘└───────────────────────────────────────────┘

In Hugging Face checkpoints its norms are stored as the difference from one; in GGUF files one has been added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kernels.interface import Operations
from penstock.model.layers.build import LayerBuilder
from penstock.model.layers.decoder import Decoder
from penstock.model.layers.step import LayerStep
from penstock.model.weights import names
from penstock.model.weights.map import WeightMap, plus_one

if TYPE_CHECKING:
    from torch import Tensor


class Gemma3Layer:
    """Sandwich norms: x + norm(attention(norm(x))), then x + norm(MLP(norm(x)))."""

    def __init__(self, build: LayerBuilder) -> None:
        self.qkv = build.linear("qkv", norm=build.norm("attention_norm"))
        self.attention = build.attention(head_norms=build.head_norms())
        self.output = build.linear("output", reduce=True)
        self.post_attention_norm = build.norm("post_attention_norm")
        self.gate_up = build.linear("gate_up", norm=build.norm("mlp_norm"), gate=build.spec.activation)
        self.down = build.linear("down", reduce=True)
        self.post_mlp_norm = build.norm("post_mlp_norm")

    def forward(self, ops: Operations, x: Tensor, step: LayerStep) -> Tensor:
        mixed = self.attention(ops, ops.linear(x, self.qkv), step)
        mixed, x = step.select(mixed, x)
        x = ops.norm(ops.linear(mixed, self.output), self.post_attention_norm, onto=x)
        return ops.norm(ops.linear(ops.linear(x, self.gate_up), self.down), self.post_mlp_norm, onto=x)


class Gemma3(Decoder):
    layer = Gemma3Layer
    weight_map = WeightMap(
        (
            names.EMBEDDING,
            names.layer_norm("attention_norm", "input_layernorm", "attn_norm", plus_one),
            *names.qkv_projection(),
            *names.qk_norms(plus_one),
            *names.OUTPUT_PROJECTION,
            names.layer_norm("post_attention_norm", "post_attention_layernorm", "post_attention_norm", plus_one),
            names.layer_norm("mlp_norm", "pre_feedforward_layernorm", "ffn_norm", plus_one),
            *names.GATE_UP_PROJECTION,
            *names.DOWN_PROJECTION,
            names.layer_norm("post_mlp_norm", "post_feedforward_layernorm", "post_ffw_norm", plus_one),
            names.final_norm(plus_one),
            names.HEAD,
        ),
        # checkpoints of text and vision
        ignored=(r"(vision_tower|multi_modal_projector)\..*",),
        renamed=(("language_model.model.", "model."), ("language_model.lm_head.", "lm_head.")),
    )
