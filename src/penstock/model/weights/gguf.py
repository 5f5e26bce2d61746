"""Tensors of a GGUF file, dequantized or as quantized blocks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.kernels.arrays import Array
from penstock.model.weights.dequantize import dequantize
from penstock.model.weights.map import Format
from penstock.model.weights.source import MappedFile, Shape
from penstock.store.gguf import TensorInfo, read_tensors


class GgufSource:
    """Implements `Source`."""

    format: Format = "gguf"

    def __init__(self, path: Path) -> None:
        self._tensors = read_tensors(path)
        self._file = MappedFile(path)
        self._shapes = {name: info.shape for name, info in self._tensors.items()}

    @property
    def shapes(self) -> Mapping[str, Shape]:
        return self._shapes

    def read(self, name: str, shape: Shape) -> Array:
        info, raw = self._raw(name)
        return dequantize(info.type.name, raw.reshape(-1, info.type.block_bytes)).reshape(shape)

    def stored_type(self, name: str) -> str:
        return self._tensors[name].type.name

    def read_blocks(self, name: str, shape: Shape) -> Array:
        info, raw = self._raw(name)
        return raw.reshape(info.shape[0], -1)

    def _raw(self, name: str) -> tuple[TensorInfo, Array]:
        info = self._tensors[name]
        return info, self._file.bytes(info.offset, info.offset + info.num_bytes)
