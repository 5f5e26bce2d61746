"""Third stage of loading, form: placed rows become weights in the form that the device's kernels read.

`DeviceForm` is the protocol; `DenseForm` is for torch and CUDA, `PackedForm` for the native CPU kernels. Blank weights
(`dummy.BlankSource`) take the same way, so that kernels can be chosen and compiled before the real weights are loaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from penstock.kernels.cpu.arena import Arena
from penstock.kernels.cpu.packed import PackedMatrix, Segment, segment_bytes
from penstock.kernels.reference import linear
from penstock.kernels.weight import Weight
from penstock.model.weights.map import Kind
from penstock.model.weights.pack import FORMATS, Quantization, kind_of, pack_blocks, pack_floats, pack_quantized
from penstock.model.weights.place import Placement
from penstock.model.weights.source import Rows, Shape


@dataclass(frozen=True, slots=True)
class Packing:
    """How matrices become packed ones."""

    quantize: Quantization | None = None  # what to make of matrices that are stored as floats; None: keep them


class DeviceForm(Protocol):
    def reads_blocks(self, stored: str) -> bool:
        """Whether it takes tensors of this type as the blocks they are stored in."""

    def matrix(self, kind: Kind, shape: Shape, rows: Iterable[Rows]) -> Weight:
        """A matrix or a table. `rows` is lazy: a piece is read when the iteration reaches it."""

    def tied_head(self, table: Weight) -> Weight:
        """The output projection of a model that has none but its embedding table."""


@dataclass(frozen=True, slots=True)
class DenseForm:
    """Implements `DeviceForm`: tensors of one float type; on x86 float32 matrices in oneDNN's layout."""

    dtype: torch.dtype
    device: torch.device

    def reads_blocks(self, stored: str) -> bool:
        return False

    def matrix(self, kind: Kind, shape: Shape, rows: Iterable[Rows]) -> Weight:
        dense = Weight.from_dense(filled(shape, rows, self.dtype, self.device))
        return self._for_products(dense) if kind == "matrix" else dense

    def tied_head(self, table: Weight) -> Weight:
        return self._for_products(table)

    def num_bytes(self, placements: Iterable[Placement], tied: bool) -> int:
        """Of all parameters, before anything is read."""
        total = 0
        for placement in placements:
            size = prod(placement.shape) * parameter_dtype(placement.kind, self.dtype).itemsize
            copied = placement.kind == "table" and tied and linear.prefers_onednn(self.dtype, self.device)
            total += 2 * size if copied else size
        return total

    def _for_products(self, dense: Weight) -> Weight:
        if linear.prefers_onednn(self.dtype, self.device):
            return Weight.from_onednn(linear.to_onednn(dense.dense))
        return dense


@dataclass(frozen=True, slots=True)
class PackedForm:
    """Implements `DeviceForm`: panels of the native CPU kernels. GGUF's quantized types keep their codes."""

    packing: Packing
    arena: Arena

    def reads_blocks(self, stored: str) -> bool:
        return stored in FORMATS

    def matrix(self, kind: Kind, shape: Shape, rows: Iterable[Rows]) -> Weight:
        return Weight.from_packed(PackedMatrix([self._segment(piece) for piece in rows], shape[1]))

    def tied_head(self, table: Weight) -> Weight:
        return table

    def piece_bytes(self, stored: str, shape: Shape) -> int:
        """Of a piece of a matrix, before it is read."""
        return segment_bytes(kind_of(stored, self.packing.quantize), *shape)

    def _segment(self, rows: Rows) -> Segment:
        if rows.is_blocks:
            return pack_blocks(rows.stored_type, rows.data, rows.cols, self.arena)
        if self.packing.quantize is not None:
            return pack_quantized(rows.data, self.packing.quantize, self.arena)
        return pack_floats(rows.data, self.arena)


def parameter_dtype(kind: Kind, dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if kind == "norm" else dtype


def filled(shape: Shape, rows: Iterable[Rows], dtype: torch.dtype, device: torch.device) -> Tensor:
    """One tensor of pieces that follow each other."""
    tensor = torch.empty(shape, dtype=dtype, device=device)
    begin = 0
    for piece in rows:
        end = begin + len(piece.data)
        tensor[begin:end] = piece.data
        begin = end
    return tensor
