"""Tensors of a GGUF file, dequantized or as quantized blocks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import numpy as np

from penstock.kernels.arrays import Array
from penstock.model.weights.codes import BLOCKS, Packing, StoredCodes, StoredRows
from penstock.model.weights.dequantize import dequantize
from penstock.model.weights.map import Format
from penstock.model.weights.source import MappedFile, Region, Shape, Span
from penstock.store.gguf import TensorInfo, TensorType, read_tensors

CHUNK = 1 << 17  # elements that are dequantized at a time: passes over them stay in the processor's cache


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

    def read(self, name: str, shape: Shape, region: Region | None = None) -> Array:
        info, raw = self._raw(name)
        if len(shape) == 1:
            values = _to_floats(info.type, raw.reshape(-1, info.type.block_bytes)).reshape(shape)
            return values if region is None else region.of(values)
        rows, columns = region or Region((Span(0, shape[0]),), Span(0, shape[1]))
        assert columns is not None
        parts = [_read_span(info.type, raw.reshape(shape[0], -1), span, columns) for span in rows]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def stored_type(self, name: str) -> str:
        return self._tensors[name].type.name

    def read_blocks(self, name: str, shape: Shape) -> Array:
        info, raw = self._raw(name)
        return raw.reshape(info.shape[0], -1)

    def codes(self, name: str) -> StoredCodes | None:
        info, raw = self._raw(name)
        if info.type.name not in BLOCKS or len(info.shape) != 2:
            return None
        layout, blocks = BLOCKS[info.type.name], raw.reshape(info.shape[0], -1)
        packing = cast(Packing, info.type.name)

        def read(rows: Span) -> StoredRows:
            shape = (rows.end - rows.begin, info.shape[1])
            return StoredRows(name, layout, packing, shape, blocks[slice(*rows)])

        return StoredCodes(layout, read)

    def release(self, name: str) -> None:
        info = self._tensors[name]
        self._file.release(info.offset, info.offset + info.num_bytes)

    def _raw(self, name: str) -> tuple[TensorInfo, Array]:
        info = self._tensors[name]
        return info, self._file.bytes(info.offset, info.offset + info.num_bytes)


def _read_span(kind: TensorType, raw: Array, rows: Span, columns: Span) -> Array:
    """Of a matrix [rows, bytes of a row]: the blocks that hold these columns are dequantized."""
    elements = kind.block_elements
    first, last = columns.begin // elements, -(-columns.end // elements)
    count = rows.end - rows.begin
    blocks = raw[slice(*rows), first * kind.block_bytes : last * kind.block_bytes].reshape(-1, kind.block_bytes)
    values = _to_floats(kind, blocks).reshape(count, -1)
    return values[:, columns.begin - first * elements : columns.end - first * elements]


def _to_floats(kind: TensorType, blocks: Array) -> Array:
    """[n, block bytes] -> [n, block elements]"""
    if kind.block_elements == 1:
        return dequantize(kind.name, blocks)
    values = np.empty((len(blocks), kind.block_elements), dtype=np.float32)
    step = CHUNK // kind.block_elements
    for begin in range(0, len(blocks), step):
        values[begin : begin + step] = dequantize(kind.name, blocks[begin : begin + step])
    return values
