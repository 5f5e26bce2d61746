"""Gemma 3, the text model: norms before and after attention and MLP and on q and k, windows on most layers.

In Hugging Face checkpoints its norms are stored as the difference from one; in GGUF files one has been added.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.model.layers import attention, decoder, mlp
from penstock.model.weights.map import Parameter, WeightMap, plus_one

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
