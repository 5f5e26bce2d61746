"""Qwen2 and 2.5: Llama with biases on q, k and v, which are in the spec. Its GGUF files keep q and k in order.
MiMo is a Qwen2 with MTP layers, which are no part of the model (`speculate.heads.mtp` reads them)."""

from __future__ import annotations

from penstock.model.architectures.llama import COMMON, Llama
from penstock.model.weights import names
from penstock.model.weights.map import WeightMap


class Qwen2(Llama):
    weight_map = WeightMap(
        (
            *COMMON,
            *names.qkv_projection(),
            *names.OUTPUT_PROJECTION,
            *names.GATE_UP_PROJECTION,
            *names.DOWN_PROJECTION,
        ),
        ignored=(r"model\.mtp_layers\..*",),
    )
