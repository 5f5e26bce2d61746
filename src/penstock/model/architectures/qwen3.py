"""Qwen3: Qwen2 with norms on the heads of q and k."""

from __future__ import annotations

from typing import ClassVar

from penstock.model.architectures.llama import FRAME, Llama
from penstock.model.layers import attention, mlp
from penstock.model.weights.map import WeightMap


class Qwen3(Llama):
    weight_map: ClassVar[WeightMap] = WeightMap(
        (*FRAME, *attention.projections(), *attention.qk_norms(), *attention.OUTPUT, *mlp.GATE_UP, *mlp.DOWN)
    )
