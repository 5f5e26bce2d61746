"""Tensors of a Hugging Face checkpoint: one safetensors file or several shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from penstock.errors import ModelInvalid
from penstock.model.weights.map import Format
from penstock.model.weights.source import MappedFile, Shape
from penstock.store.safetensors import read_index

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}


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

    def read(self, name: str, shape: Shape) -> Tensor:
        entry = self._index[name]
        if entry.dtype not in DTYPES:
            raise ModelInvalid(
                f"{entry.file}: tensor {name} has dtype {entry.dtype}; weights must be {', '.join(DTYPES)}",
                param="model",
            )
        raw = self._files[entry.file].bytes(entry.begin, entry.end)
        dtype = DTYPES[entry.dtype]
        if raw.storage_offset() % dtype.itemsize or raw.data_ptr() % dtype.itemsize:
            raw = raw.clone()  # the format does not promise that tensors are aligned
        return raw.view(dtype).view(shape)

    def stored_type(self, name: str) -> str:
        return self._index[name].dtype

    def read_blocks(self, name: str, shape: Shape) -> Tensor:
        raise AssertionError(f"{name} has no blocks")
