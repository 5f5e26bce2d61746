"""Tensors of a Hugging Face checkpoint: one safetensors file or several shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import ModelInvalid
from penstock.kernels.arrays import BFLOAT16, Array
from penstock.model.weights.codes import StoredCodes
from penstock.model.weights.map import Format
from penstock.model.weights.source import MappedFile, Region, Shape
from penstock.store.safetensors import read_index

DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": BFLOAT16,
    "F64": np.dtype("<f8"),
}
# Of quantized weights
CODES: dict[str, np.dtype[Any]] = {
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "F8_E4M3": np.dtype("u1"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
}


class SafetensorsSource:
    """Implements `Source`."""

    format: Format = "hf"

    def __init__(self, paths: Sequence[Path]) -> None:
        self._index = read_index(paths)
        self._files = {path: MappedFile(path) for path in paths}
        self._shapes = {name: entry.shape for name, entry in self._index.items()}

    @property
    def shapes(self) -> Mapping[str, Shape]:
        return self._shapes

    def read(self, name: str, shape: Shape, region: Region | None = None) -> Array:
        entry = self._index[name]
        if entry.dtype not in DTYPES:
            raise ModelInvalid(
                f"{entry.file}: tensor {name} has dtype {entry.dtype}; weights must be {', '.join(DTYPES)}",
                param="model",
            )
        values = self.read_stored(name).reshape(shape)
        return values if region is None else region.of(values)

    def read_stored(self, name: str) -> Array:
        """Integers too, in the type and shape they are stored in; numbers of FP8 as their bits. Over the mapped
        file."""
        entry = self._index[name]
        raw = self._files[entry.file].bytes(entry.begin, entry.end)
        values: Array = raw.view((DTYPES | CODES)[entry.dtype])
        if not values.flags.aligned:
            values = values.copy()  # the format does not promise that tensors are aligned
        return values.reshape(entry.shape)

    def stored_type(self, name: str) -> str:
        return self._index[name].dtype

    def release(self, name: str) -> None:
        entry = self._index[name]
        self._files[entry.file].release(entry.begin, entry.end)

    def read_blocks(self, name: str, shape: Shape) -> Array:
        raise AssertionError(f"{name} has no blocks")

    def codes(self, name: str) -> StoredCodes | None:
        return None
