"""Tensors of a Hugging Face checkpoint whose linear layers are quantized: AWQ, GPTQ, compressed-tensors, FP8, NVFP4.

Such a checkpoint has several tensors (codes, scales, zero points) where others have one matrix. `QuantizedSource` shows
that matrix, under its usual name. Codes with a scale for every 32 inputs, or for a multiple of that, are read as blocks
of Q4_0, Q4_1 or Q8_0, NVFP4 as blocks of its own: the same codes. Others are read as floats: FP8, and GPTQ with
`desc_act`, whose groups are not runs of inputs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from penstock.errors import ModelInvalid
from penstock.kernels.arrays import Array
from penstock.model.weights.codes import StoredCodes
from penstock.model.weights.layer_tensors import LayerTensors
from penstock.model.weights.map import Format
from penstock.model.weights.quantized_layers import QuantizedMatrix, reader
from penstock.model.weights.safetensors import DTYPES, SafetensorsSource
from penstock.model.weights.source import Region, Shape, Span
from penstock.store.hf_quantization import Quantization

# For engines with 8-bit activations, or a KV cache with one scale for all tokens: here each token has its own.
OF_KV_CACHE = ("q_scale", "k_scale", "v_scale", "kv_scale")
UNUSED = ("input_scale", "input_zero_point", "input_global_scale", "output_scale", *OF_KV_CACHE)
LARGEST = 65520.0  # from here on float16 rounds to infinity


class QuantizedSource:
    """Implements `Source`."""

    format: Format = "hf"

    def __init__(self, source: SafetensorsSource, quantization: Quantization) -> None:
        self._source = source
        self._matrices = _matrices(source, quantization)
        taken = {name for matrix in self._matrices.values() for name in matrix.tensors}
        plain = {
            name: shape
            for name, shape in source.shapes.items()
            if name not in taken and name.rpartition(".")[2] not in UNUSED
        }
        self._shapes = plain | {name: matrix.shape for name, matrix in self._matrices.items()}

    @property
    def shapes(self) -> Mapping[str, Shape]:
        return self._shapes

    def read(self, name: str, shape: Shape, region: Region | None = None) -> Array:
        if name not in self._matrices:
            return self._source.read(name, shape, region)
        rows, columns = region or Region((Span(0, shape[0]),), Span(0, shape[1]))
        assert columns is not None
        parts = [self._matrices[name].floats(span, columns) for span in rows]
        values: Array = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if not np.abs(values).max(initial=0) < LARGEST:  # NaN neither
            raise ModelInvalid(f"weights of {name} are not finite, or too large for float16", param="model")
        return values

    def stored_type(self, name: str) -> str:
        return self._matrices[name].stored_type if name in self._matrices else self._source.stored_type(name)

    def read_blocks(self, name: str, shape: Shape) -> Array:
        return self._matrices[name].blocks()

    def codes(self, name: str) -> StoredCodes | None:
        return self._matrices[name].codes if name in self._matrices else None

    def release(self, name: str) -> None:
        for tensor in self._matrices[name].tensors if name in self._matrices else (name,):
            self._source.release(tensor)


def _matrices(source: SafetensorsSource, quantization: Quantization) -> dict[str, QuantizedMatrix]:
    """Which linear layers are quantized is seen from the tensors they have, not from lists of the config."""
    matrices = {}
    for name in source.shapes:
        (layer, _, what), stored = name.rpartition("."), source.stored_type(name)
        if read := reader(what, stored, quantization.method):
            matrices[f"{layer}.weight"] = read(LayerTensors(source, layer, what), quantization)
        elif what == "weight" and stored not in DTYPES:
            raise ModelInvalid(f"tensor {name} has dtype {stored}, which quantized weights cannot have", param="model")
    return matrices
