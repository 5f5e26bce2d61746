"""The static scales of a checkpoint for an fp8 KV cache: one number for the keys of a layer and one for its values, by
which codes are multiplied.

`self_attn.k_scale` and `v_scale` (compressed-tensors, vLLM), `self_attn.attn.k_scale`, `self_attn.k_proj.k_scale` and
`self_attn.v_proj.v_scale` (ModelOpt), or `self_attn.kv_scale` for both (AutoFP8).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

from penstock.errors import ModelInvalid
from penstock.kernels.arrays import to_float32
from penstock.model.weights.safetensors import SafetensorsSource

NAME = re.compile(r"\.layers\.(\d+)\.(?:self_attn|attention)\.(?:attn\.|[kv]_proj\.|qkv_proj\.)?(k|v|kv)_scale$")


class KvScales(NamedTuple):
    key: float
    value: float


def read_kv_scales(paths: Sequence[Path], num_layers: int) -> list[KvScales] | None:
    """[layers]. None: a layer has none, or has several, as of single heads. Raises ModelInvalid."""
    source = SafetensorsSource(paths)
    found: dict[tuple[int, str], float] = {}
    for name, shape in source.shapes.items():
        match = NAME.search(name)
        if match is None:
            continue
        if prod(shape) != 1:
            return None
        scale = float(to_float32(source.read(name, (1,)))[0])
        if not 0.0 < scale < float("inf"):
            raise ModelInvalid(f"{name} is {scale}: a scale must be a positive number", param="model")
        for what in match[2]:
            found[int(match[1]), what] = scale
    try:
        return [KvScales(found[layer, "k"], found[layer, "v"]) for layer in range(num_layers)]
    except KeyError:
        return None
