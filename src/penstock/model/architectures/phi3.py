"""Phi-3: Llama whose checkpoints have q, k and v in one matrix already, and gate and up in another."""

from __future__ import annotations

from typing import ClassVar

from penstock.model.architectures.llama import FRAME, Llama
from penstock.model.layers import attention, mlp
from penstock.model.weights.map import Parameter, Part, WeightMap

QKV = Part("model.layers.{layer}.self_attn.qkv_proj.weight", "blk.{layer}.attn_qkv.weight", "qkv")
GATE_UP = Part("model.layers.{layer}.mlp.gate_up_proj.weight", "blk.{layer}.ffn_up.weight", "gate_up")


class Phi3(Llama):
    weight_map: ClassVar[WeightMap] = WeightMap(
        (
            *FRAME,
            Parameter("layers.{layer}.qkv", "matrix", (QKV,), "hidden"),
            Parameter("layers.{layer}.gate_up", "matrix", (GATE_UP,), "hidden"),
            *attention.OUTPUT,
            *mlp.DOWN,
        )
    )
