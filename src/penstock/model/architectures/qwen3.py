"""Qwen3: Qwen2 with norms on the heads of q and k."""

from __future__ import annotations

from penstock.model.architectures.llama import LlamaLayer
from penstock.model.architectures.qwen2 import Qwen2
from penstock.model.layers.build import LayerBuilder
from penstock.model.weights import names
from penstock.model.weights.map import WeightMap


class Qwen3Layer(LlamaLayer):
    def __init__(self, build: LayerBuilder) -> None:
        super().__init__(build)
        self.attention = build.attention(head_norms=build.head_norms())


class Qwen3(Qwen2):
    layer = Qwen3Layer
    weight_map = WeightMap((*Qwen2.weight_map.parameters, *names.qk_norms()))
