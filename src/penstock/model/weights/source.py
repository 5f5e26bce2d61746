"""Sources of tensors: the protocol, the rows they are read as, and the file mapping that both formats use."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from penstock.errors import ModelInvalid, ModelNotFound
from penstock.kernels.arrays import Array
from penstock.model.weights.map import Format
from penstock.store.gguf import TENSOR_TYPES

if TYPE_CHECKING:
    from penstock.model.weights.codes import StoredCodes

Shape = tuple[int, ...]
BLOCK_ELEMENTS = {kind.name: kind.block_elements for kind in TENSOR_TYPES.values()} | {"NVFP4": 32}


class Span(NamedTuple):
    begin: int
    end: int


class Region(NamedTuple):
    """What of a tensor is read: some of its rows and some of its columns."""

    rows: tuple[Span, ...]
    columns: Span | None  # None: a vector

    @property
    def shape(self) -> Shape:
        rows = sum(end - begin for begin, end in self.rows)
        return (rows,) if self.columns is None else (rows, self.columns.end - self.columns.begin)

    def of(self, values: Array) -> Array:
        """Over the same memory if its rows are one span."""
        slices = [values[begin:end] for begin, end in self.rows]
        taken = slices[0] if len(slices) == 1 else np.concatenate(slices)
        return taken if self.columns is None else taken[:, slice(*self.columns)]


class Rows(NamedTuple):
    """Rows of a tensor of a checkpoint, as floats or as the blocks they are stored in."""

    data: Array  # [rows, cols] or, of a vector, [rows]; [rows, bytes of a row] uint8 of blocks
    stored_type: str  # in the checkpoint, see `Source.stored_type`
    cols: int
    is_blocks: bool = False
    name: str = ""  # in the checkpoint

    def cut_columns(self, begin: int, end: int) -> Rows:
        if (begin, end) == (0, self.cols):
            return self
        if not self.is_blocks:
            return self._replace(data=self.data[:, begin:end], cols=end - begin)
        elements = BLOCK_ELEMENTS[self.stored_type]
        if begin % elements or end % elements:
            raise ValueError(f"columns {begin} to {end} are not whole blocks of {self.stored_type}")
        row_bytes = self.data.shape[1]
        data = self.data[:, begin * row_bytes // self.cols : end * row_bytes // self.cols]
        return self._replace(data=data, cols=end - begin)


class Source(Protocol):
    """Arrays by the name they have in a checkpoint."""

    format: Format

    @property
    def shapes(self) -> Mapping[str, Shape] | None:
        """Of all tensors; None: it makes tensors of any name and shape."""

    def read(self, name: str, shape: Shape, region: Region | None = None) -> Array:
        """The tensor, in any floating-point type (`kernels.arrays`), or a region of it, of which alone memory is taken.
        Read-only."""

    def stored_type(self, name: str) -> str:
        """The type it has in the checkpoint, by its name in GGUF: "F32", "Q4_0"."""

    def read_blocks(self, name: str, shape: Shape) -> Array:
        """[rows, bytes of a row] uint8: a matrix of a quantized type, as it is stored. Read-only."""

    def codes(self, name: str) -> StoredCodes | None:
        """Of a quantized matrix, whichever way it is stored; None: it has none that `codes` has a layout for."""

    def release(self, name: str) -> None:
        """What was read of this tensor is not needed any more."""


# Linux may map so many bytes around a missing page: those of tensors beside, too, which had been released.
FETCHED_AROUND = 2 << 20


class MappedFile:
    """A file mapped into memory. Pages are fetched when a tensor over them is used; `release` drops them, so that
    loading does not take memory for the whole file."""

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                # copy-on-write: torch takes no read-only memory; it is never written
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except FileNotFoundError:
            raise ModelNotFound(f"no such file: {path}", param="model") from None
        except (OSError, ValueError) as error:
            raise ModelInvalid(f"cannot read {path}: {error}", param="model") from None

    def bytes(self, begin: int, end: int) -> Array:
        """[end - begin] uint8, over the mapping. The caller has checked that the file is long enough."""
        return np.frombuffer(self._map, dtype=np.uint8, count=end - begin, offset=begin)

    def release(self, begin: int, end: int) -> None:
        """These bytes are not needed any more, nor what was fetched around them. Unchanged pages can be fetched again,
        so neighbours lose nothing."""
        if end > begin and hasattr(mmap, "MADV_DONTNEED"):
            page = begin - begin % FETCHED_AROUND
            end = min(end + -end % FETCHED_AROUND, len(self._map))
            self._map.madvise(mmap.MADV_DONTNEED, page, end - page)
