"""Phi-3: Llama whose checkpoints have q, k and v in one matrix already, and gate and up in another."""

from __future__ import annotations

from penstock.model.architectures.llama import COMMON, Llama
from penstock.model.weights import names
from penstock.model.weights.map import Parameter, Part, WeightMap

QKV = Part(f"{names.HF_ATTENTION}qkv_proj.weight", f"{names.GGUF_ATTENTION}qkv.weight", "qkv")
GATE_UP = Part(f"{names.HF_MLP}gate_up_proj.weight", f"{names.GGUF_MLP}up.weight", "gate_up")


class Phi3(Llama):
    weight_map = WeightMap(
        (
            *COMMON,
            Parameter(f"{names.LAYER}qkv", "matrix", (QKV,), "hidden"),
            Parameter(f"{names.LAYER}gate_up", "matrix", (GATE_UP,), "hidden"),
            *names.OUTPUT_PROJECTION,
            *names.DOWN_PROJECTION,
        )
    )
