"""Writes a GGUF file: metadata, the table of tensors, and their data. `store.gguf` reads it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from penstock.kernels.arrays import Array
from penstock.store.gguf import MAGIC, TENSOR_TYPES

VERSION = 3
ALIGNMENT = 32
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9  # types of values
TYPE_IDS = {kind.name: number for number, kind in TENSOR_TYPES.items()}


@dataclass(frozen=True, slots=True)
class Tensor:
    name: str
    shape: tuple[int, ...]
    type: str  # as "Q4_0"
    data: Callable[[], Array]  # called when it is written

    @property
    def num_bytes(self) -> int:
        kind = TENSOR_TYPES[TYPE_IDS[self.type]]
        return prod(self.shape) // kind.block_elements * kind.block_bytes


def write_gguf(
    path: Path, metadata: Mapping[str, Any], tensors: Sequence[Tensor], progress: Callable[[int, int], None]
) -> None:
    header = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(metadata))]
    for key, value in metadata.items():
        header += [_text(key), _value(value)]
    offset = 0
    for tensor in tensors:
        sizes = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
        header += [_text(tensor.name), sizes, struct.pack("<IQ", TYPE_IDS[tensor.type], offset)]
        offset += _aligned(tensor.num_bytes)
    start = b"".join(header)
    with path.open("wb") as file:
        file.write(start.ljust(_aligned(len(start)), b"\0"))
        for number, tensor in enumerate(tensors):
            data = tensor.data().tobytes()
            assert len(data) == tensor.num_bytes, tensor.name
            file.write(data.ljust(_aligned(len(data)), b"\0"))
            progress(number + 1, len(tensors))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    kind = _kind(value)
    if kind != ARRAY:
        return struct.pack("<I", kind) + _plain(kind, value)
    of = STRING if not value else _kind(value[0])
    of = INT32 if of == UINT32 else of  # what arrays of token types are
    return struct.pack("<IIQ", ARRAY, of, len(value)) + b"".join(_plain(of, one) for one in value)


def _kind(value: Any) -> int:
    return {bool: BOOL, int: UINT32, float: FLOAT32, str: STRING, list: ARRAY}[type(value)]


def _plain(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return _text(value)
    return struct.pack({UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<?"}[kind], value)
