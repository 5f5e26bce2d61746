"""Load a model: from a spec and a source of tensors to a decoder that can run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from penstock.errors import ModelInvalid
from penstock.kernels.arrays import Dtype
from penstock.kernels.interface import Rotary
from penstock.model import registry
from penstock.model.layers.decoder import Decoder
from penstock.model.layers.rope import rotary_table
from penstock.model.weights import loader
from penstock.model.weights.form import DeviceForm, PackedForm
from penstock.model.weights.gguf import GgufSource
from penstock.model.weights.place import WHOLE, Shard
from penstock.model.weights.quantized_hf import QuantizedSource
from penstock.model.weights.safetensors import SafetensorsSource
from penstock.model.weights.source import Source
from penstock.store.hf_quantization import Quantization
from penstock.store.spec import ModelSpec, Rope
from penstock.store.tensor_parallel import rank_spec

CODED = (".qweight", ".weight_packed", ".weight_scale", ".weight_scale_inv")  # names of tensors end so


def load(
    spec: ModelSpec, source: Source, form: DeviceForm, *, context: int, threads: int = 1, shard: Shard = WHOLE
) -> Decoder:
    """`context`: the longest sequence it will run, up to spec.context; less saves memory."""
    kind = registry.architecture(spec.architecture)
    weights = loader.load(kind.weight_map, source, spec, form, shard, threads=threads)

    def rotary(rope: Rope) -> Rotary:
        return Rotary(form.constant(rotary_table(rope, context)), rope.dim)

    return kind(rank_spec(spec, shard.world), weights, rotary, shard.world)


def parameter_bytes(spec: ModelSpec, dtype: Dtype, shard: Shard = WHOLE) -> int:
    """Bytes of all parameters as tensors of `dtype`, from the spec alone."""
    return loader.parameter_bytes(registry.architecture(spec.architecture).weight_map, spec, dtype, shard)


def packed_bytes(spec: ModelSpec, source: Source, form: PackedForm) -> int:
    """Bytes of matrices and tables once packed; norms and biases are negligible."""
    return loader.packed_bytes(registry.architecture(spec.architecture).weight_map, source, spec, form)


def open_source(
    paths: Sequence[Path], form: Literal["safetensors", "gguf"], quantization: Quantization | None = None
) -> Source:
    """`quantization`: the spec's."""
    if form == "gguf":
        return GgufSource(paths[0])
    source = SafetensorsSource(paths)
    if quantization:
        return QuantizedSource(source, quantization)
    if coded := next((name for name in source.shapes if name.endswith(CODED)), None):
        raise ModelInvalid(
            f"tensor {coded} is of quantized weights, and config.json has no quantization_config", param="model"
        )
    return source
