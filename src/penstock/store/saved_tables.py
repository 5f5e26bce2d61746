"""Copies of the base's embedding and head that PEFT saves beside an adapter of them (`save_embedding_layers`).

Nothing of them is used, so they must be what the base has: tables that were trained whole are an adapter that is more
than low-rank matrices. Both are read once, piece by piece, when the adapter is added.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import ModelInvalid, WeightsMismatch
from penstock.store.adapter_spec import DTYPE_BYTES, AdapterFiles, SavedTable
from penstock.store.files import ModelFiles
from penstock.store.safetensors import TensorEntry, read_index

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, Any]

logger = logging.getLogger(__name__)

PIECE_BYTES = 8 << 20  # of the larger one of both, at a time
SUBNORMAL = 2.0**-24  # the least number of float16: what a table loses that was float16 on its way
_TABLE = re.compile(r"(?:model\.)?(?:language_model\.)?(?:model\.)?(embed_tokens|lm_head)\.weight")
_MODULES = {"embed_tokens": "embed", "lm_head": "head"}


def check_saved_tables(adapter: AdapterFiles, base: ModelFiles) -> None:
    """Raises WeightsMismatch, with the name of the tensor, if one is not the base's. If the
    base's own table is quantized, or in a GGUF file, there is a warning instead. Shapes have been checked."""
    if not adapter.spec.saved_tables or not base.weights:
        return
    tables = _tables_of(base)
    for saved in adapter.spec.saved_tables:
        own = tables.get(saved.module) or (tables.get("embed") if base.spec.tied else None)
        if own is None:
            logger.warning(
                "adapter %s: its tensor %s is taken for a copy of the table of %s, which cannot be compared "
                "here: what was trained of it is lost",
                adapter.spec.name,
                saved.name,
                base.name,
            )
        elif (row := _first_difference(adapter, saved, own)) is not None:
            raise WeightsMismatch(
                f"adapter {adapter.spec.name} does not fit: its tensor {saved.name} is not the table of {base.name}, "
                f"they differ in row {row}: tables that are trained whole are not supported; if this one was not, save "
                "the adapter without it (save_embedding_layers=False)",
                param="adapter",
            )


def _tables_of(base: ModelFiles) -> Mapping[str, TensorEntry]:
    """The floats among the base's tables, by module."""
    if base.format != "safetensors":
        return {}
    found = ((_TABLE.fullmatch(name), entry) for name, entry in read_index(base.weights).items())
    return {_MODULES[name[1]]: entry for name, entry in found if name is not None and entry.dtype in DTYPE_BYTES}


def _first_difference(adapter: AdapterFiles, saved: SavedTable, own: TensorEntry) -> int | None:
    """The first row that is not the same, or the same in the type of one of both."""
    rows, columns = saved.shape
    step = max(1, PIECE_BYTES // (columns * max(DTYPE_BYTES[saved.dtype], DTYPE_BYTES[own.dtype])))
    try:
        pairs = zip(_pieces(adapter.weights, saved, columns, step), _pieces(own.file, own, columns, step), strict=True)
        for start, (one, other) in zip(range(0, rows, step), pairs, strict=True):
            if saved.dtype == own.dtype and one == other:
                continue
            differs = _rows_that_differ(one, saved.dtype, other, own.dtype, columns)
            if differs.any():
                return start + int(differs.argmax())
    except OSError as error:
        raise ModelInvalid(f"cannot read {error.filename}: {error.strerror}", param="adapter") from None
    return None


def _pieces(path: Path, tensor: SavedTable | TensorEntry, columns: int, step: int) -> Iterator[bytes]:
    """Of `step` rows each."""
    size = step * columns * DTYPE_BYTES[tensor.dtype]
    with path.open("rb") as file:
        file.seek(tensor.begin)
        for begin in range(tensor.begin, tensor.end, size):
            yield file.read(min(size, tensor.end - begin))


def _rows_that_differ(one: bytes, dtype: str, other: bytes, own_dtype: str, columns: int) -> Numbers:
    import numpy as np  # few adapters have tables, and fewer of another type than the base's

    a, b = _float32(one, dtype), _float32(other, own_dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        same: Numbers = (abs(a - _rounded(b, dtype)) <= SUBNORMAL) | (abs(_rounded(a, own_dtype) - b) <= SUBNORMAL)
    return np.asarray(~same.reshape(-1, columns).all(axis=1))


def _float32(raw: bytes, dtype: str) -> Numbers:
    import numpy as np

    if dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[dtype]).astype("<f4")


def _rounded(values: Numbers, dtype: str) -> Numbers:
    """To the nearest of a type, as float32; ties to even."""
    if dtype == "F32":
        return values
    if dtype == "F16":
        return values.astype("<f2").astype("<f4")
    bits = values.view("<u4")
    rounded: Numbers = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).view("<f4")
    return rounded
