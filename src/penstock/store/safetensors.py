"""Reads the headers of safetensors files: which tensors there are and where they lie. The tensors stay on disk.

Layout: length of the header (8 bytes, little-endian), the header (JSON), tensor data to the end of the file without
holes. The checks here are what lets a loader map the file without looking again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path

import msgspec

from penstock.errors import ModelInvalid, ModelNotFound
from penstock.system import typed

MAX_HEADER_BYTES = 100_000_000  # the format's own limit

# dtype as the header spells it -> bytes of one element
DTYPE_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    file: Path
    dtype: str  # a key of DTYPE_BYTES
    shape: tuple[int, ...]
    begin: int  # bytes from the start of the file
    end: int


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]  # from the end of the header


def read_index(paths: Iterable[Path]) -> dict[str, TensorEntry]:
    """The tensors of a checkpoint of one or several files."""
    tensors: dict[str, TensorEntry] = {}
    for path in paths:
        for name, entry in read_header(path).items():
            if name in tensors:
                raise ModelInvalid(f"tensor {name} is both in {tensors[name].file} and in {path}", param="model")
            tensors[name] = entry
    return tensors


def read_header(path: Path, *, max_header_bytes: int = MAX_HEADER_BYTES) -> dict[str, TensorEntry]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > max_header_bytes:
                raise _invalid_file(path, "it does not start with the length of a header")
            if 8 + length > size:
                raise _invalid_file(path, f"it is truncated: its header ends at byte {8 + length}, the file at {size}")
            raw = file.read(length)
    except FileNotFoundError:
        raise ModelNotFound(f"no such file: {path}", param="model") from None
    except OSError as error:
        raise ModelInvalid(f"cannot read {path}: {error.strerror}", param="model") from None
    entries = _decode(path, raw)
    _check_layout(path, entries, size - 8 - length)
    return {
        name: TensorEntry(
            path, entry.dtype, entry.shape, 8 + length + entry.data_offsets[0], 8 + length + entry.data_offsets[1]
        )
        for name, entry in entries.items()
    }


def _decode(path: Path, raw: bytes) -> dict[str, _Entry]:
    try:
        values = typed.decode_json(raw, dict[str, msgspec.Raw])
        values.pop("__metadata__", None)
        return {name: typed.decode_json(value, _Entry) for name, value in values.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid_file(path, f"its header cannot be read ({error})") from None


def _check_layout(path: Path, entries: dict[str, _Entry], data_bytes: int) -> None:
    """Tensors follow each other without holes, each as long as its shape says, to the end of the file."""
    position, cut = 0, None  # the first tensor that ends behind the file
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        begin, end = entry.data_offsets
        if entry.dtype not in DTYPE_BYTES:
            raise ModelInvalid(
                f"{path}: tensor {name} has dtype {entry.dtype}, which is not supported ({', '.join(DTYPE_BYTES)} are)",
                param="model",
            )
        if begin != position or any(extent < 0 for extent in entry.shape):
            raise _invalid_file(
                path, f"tensor {name} of shape {entry.shape} begins at byte {begin} instead of {position}"
            )
        if end - begin != prod(entry.shape) * DTYPE_BYTES[entry.dtype]:
            raise _invalid_file(
                path, f"tensor {name} of shape {entry.shape} and dtype {entry.dtype} has {end - begin} bytes"
            )
        position = end
        cut = cut or (name if end > data_bytes else None)
    if cut is not None:
        raise _invalid_file(
            path, f"it is truncated in tensor {cut}: its tensors take {position} bytes, {data_bytes} are there"
        )
    if position < data_bytes:
        raise _invalid_file(path, f"{data_bytes - position} bytes follow its last tensor")


def _invalid_file(path: Path, what: str) -> ModelInvalid:
    return ModelInvalid(f"{path} is not a valid safetensors file: {what}", param="model")
