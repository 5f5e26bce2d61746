"""Llama 2 and 3, SmolLM, and all that differ from them in flags of the spec or in the names of tensors only."""

from __future__ import annotations

from typing import ClassVar

from penstock.model.layers import attention, decoder, mlp
from penstock.model.weights.map import WeightMap, halves_from_pairs

FRAME = (
    decoder.EMBEDDING,
    decoder.norm("layers.{layer}.attention_norm", "model.layers.{layer}.input_layernorm", "blk.{layer}.attn_norm"),
    decoder.norm("layers.{layer}.mlp_norm", "model.layers.{layer}.post_attention_layernorm", "blk.{layer}.ffn_norm"),
    decoder.norm("norm", "model.norm", "output_norm"),
    decoder.HEAD,
)


class Llama(decoder.Decoder):
    weight_map: ClassVar[WeightMap] = WeightMap(
        (*FRAME, *attention.projections(halves_from_pairs), *attention.OUTPUT, *mlp.GATE_UP, *mlp.DOWN)
    )
