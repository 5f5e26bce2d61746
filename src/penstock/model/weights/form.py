"""Third stage of loading, form: placed rows become weights in the form that the device's kernels read.

`DeviceForm` is the protocol. `PackedForm` is for the native CPU kernels. Others need torch: `dense_form.DenseForm`, for
torch and CUDA, and `coded_form.CodedForm`, for CUDA.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from penstock.kernels.arrays import Array, to_float32
from penstock.kernels.cpu.arena import Arena
from penstock.kernels.cpu.packed import PackedMatrix, Segment, segment_bytes
from penstock.kernels.interface import as_tensor
from penstock.kernels.weight import Weight
from penstock.model.weights.codes import CodedPiece, StoredRows
from penstock.model.weights.map import Kind
from penstock.model.weights.pack import FORMATS, Quantization, kind_of, pack_blocks, pack_floats, pack_quantized
from penstock.model.weights.source import Rows, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from penstock.model.weights.unpack_codes import Codes


class DeviceForm(Protocol):
    def reads_blocks(self, stored: str) -> bool:
        """Whether it takes tensors of this type as the blocks they are stored in."""

    def keeps_codes(self, kind: Kind, pieces: Sequence[CodedPiece | None]) -> bool:
        """Whether it takes a matrix of these pieces as codes. None: one that has floats alone."""

    def unpacked(self, rows: Sequence[StoredRows]) -> Codes:
        """Rows of one matrix below each other, on the device."""

    def coded(self, pieces: Sequence[CodedPiece], codes: Iterable[Codes]) -> Weight:
        """Such a matrix. `codes` is lazy."""

    def matrix(self, kind: Kind, shape: Shape, rows: Iterable[Rows]) -> Weight:
        """Any other, or a table. `rows` is lazy: a piece is read when the iteration reaches it."""

    def vector(self, kind: Kind, shape: Shape, rows: Iterable[Rows]) -> Tensor:
        """A norm, which is float32, or a bias."""

    def tied_head(self, table: Weight) -> Weight:
        """The output projection of a model that has none but its embedding table."""

    def constant(self, values: Array) -> Tensor:
        """Numbers that are computed and not read, float32."""


@dataclass(frozen=True, slots=True)
class PackedForm:
    """Implements `DeviceForm`: panels of the native CPU kernels. GGUF's quantized types keep their codes."""

    quantize: Quantization | None = None  # what to make of matrices that are stored as floats; None: keep them
    arena: Arena = field(default_factory=Arena)

    def reads_blocks(self, stored: str) -> bool:
        return stored in FORMATS

    def keeps_codes(self, kind: Kind, pieces: Sequence[CodedPiece | None]) -> bool:
        return False  # it takes blocks

    def unpacked(self, rows: Sequence[StoredRows]) -> Codes:
        raise AssertionError("it takes blocks")

    def coded(self, pieces: Sequence[CodedPiece], codes: Iterable[Codes]) -> Weight:
        raise AssertionError("it takes blocks")

    def matrix(self, kind: Kind, shape: Shape, rows: Iterable[Rows]) -> Weight:
        return Weight.from_packed(PackedMatrix([self._segment(piece) for piece in rows], shape[1]))

    def vector(self, kind: Kind, shape: Shape, rows: Iterable[Rows]) -> Tensor:
        return as_tensor(np.concatenate([to_float32(piece.data) for piece in rows]))

    def tied_head(self, table: Weight) -> Weight:
        return table

    def constant(self, values: Array) -> Tensor:
        return as_tensor(values)

    def piece_bytes(self, stored: str, shape: Shape) -> int:
        """Of a piece of a matrix, before it is read."""
        return segment_bytes(kind_of(stored, self.quantize), *shape)

    def _segment(self, rows: Rows) -> Segment:
        if rows.is_blocks:
            return pack_blocks(rows.stored_type, rows.data, rows.cols, self.arena, name=rows.name)
        if self.quantize is not None:
            return pack_quantized(rows.data, self.quantize, self.arena)
        return pack_floats(rows.data, rows.stored_type, self.arena)
