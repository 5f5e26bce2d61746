"""Load a model: from a spec and a source of tensors to a decoder that can run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from penstock.model import registry
from penstock.model.layers.decoder import Decoder
from penstock.model.weights import loader
from penstock.model.weights.form import Packing
from penstock.model.weights.gguf import GgufSource
from penstock.model.weights.safetensors import SafetensorsSource
from penstock.model.weights.source import Source
from penstock.store.spec import ModelSpec

DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load(
    spec: ModelSpec,
    source: Source,
    *,
    dtype: torch.dtype,
    device: torch.device,
    context: int,
    packing: Packing | None = None,
) -> Decoder:
    """`context`: the longest sequence it will run, up to spec.context; less saves memory. `packing`: for the native CPU
    kernels."""
    kind = registry.architecture(spec.architecture)
    weights = loader.load(kind.weight_map, source, spec, dtype=dtype, device=device, packing=packing)
    return kind(spec, weights, device=device, context=context)


def weight_bytes(spec: ModelSpec, *, dtype: torch.dtype, device: torch.device) -> int:
    """Bytes of the loaded weights, from the spec alone."""
    return loader.dense_bytes(registry.architecture(spec.architecture).weight_map, spec, dtype, device)


def packed_bytes(spec: ModelSpec, source: Source, packing: Packing) -> int:
    """Bytes of matrices and tables once packed; norms and biases are negligible."""
    return loader.packed_bytes(registry.architecture(spec.architecture).weight_map, source, spec, packing)


def open_source(paths: Sequence[Path], form: Literal["safetensors", "gguf"]) -> Source:
    return GgufSource(paths[0]) if form == "gguf" else SafetensorsSource(paths)


def choose_dtype(name: DtypeName, spec: ModelSpec, device: torch.device) -> torch.dtype:
    """auto: float32 on a CPU; elsewhere the checkpoint's own type, or bfloat16 if that is float32."""
    if name != "auto":
        return DTYPES[name]
    if device.type == "cpu":
        return torch.float32
    return torch.bfloat16 if spec.dtype == "float32" else DTYPES[spec.dtype]
