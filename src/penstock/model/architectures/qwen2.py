"""Qwen2 and 2.5: Llama with biases on q, k and v (a flag of the spec). Its GGUF files keep q and k in order."""

from __future__ import annotations

from typing import ClassVar

from penstock.model.architectures.llama import FRAME, Llama
from penstock.model.layers import attention, mlp
from penstock.model.weights.map import WeightMap


class Qwen2(Llama):
    weight_map: ClassVar[WeightMap] = WeightMap(
        (*FRAME, *attention.projections(), *attention.OUTPUT, *mlp.GATE_UP, *mlp.DOWN)
    )
