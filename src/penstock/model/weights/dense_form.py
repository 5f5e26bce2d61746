"""Weights as torch tensors of one float type, for torch and CUDA.

Blank weights (`dummy_tensors.BlankSource`) take the same way, so that kernels can be chosen and compiled before the
real weights are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.kernels.arrays import BFLOAT16, Array
from penstock.kernels.reference import linear
from penstock.kernels.weight import Weight
from penstock.model.weights.codes import CodedPiece, StoredRows
from penstock.model.weights.map import Kind
from penstock.model.weights.source import Rows, Shape

if TYPE_CHECKING:
    from penstock.model.weights.unpack_codes import Codes

Allocate = Callable[[Sequence[int], torch.dtype], Tensor]  # of a shape and a type, not initialised


@dataclass(frozen=True, slots=True)
class DenseForm:
    """Implements `DeviceForm`. On x86 float32 matrices are in oneDNN's layout."""

    dtype: torch.dtype
    device: torch.device
    allocate: Allocate | None = None  # None: by torch

    def reads_blocks(self, stored: str) -> bool:
        return False

    def keeps_codes(self, kind: Kind, pieces: Sequence[CodedPiece | None]) -> bool:
        return False

    def unpacked(self, rows: Sequence[StoredRows]) -> Codes:
        raise AssertionError("it keeps no codes")

    def coded(self, pieces: Sequence[CodedPiece], codes: Iterable[Codes]) -> Weight:
        raise AssertionError("it keeps no codes")

    def matrix(self, kind: Kind, shape: Shape, rows: Iterable[Rows]) -> Weight:
        dense = Weight.from_dense(self._filled(shape, rows, self.dtype))
        return dense if kind == "table" else self._for_products(dense)

    def vector(self, kind: Kind, shape: Shape, rows: Iterable[Rows]) -> Tensor:
        return self._filled(shape, rows, torch.float32 if kind == "norm" else self.dtype)

    def tied_head(self, table: Weight) -> Weight:
        return self._for_products(table)

    def constant(self, values: Array) -> Tensor:
        return torch.from_numpy(values).to(self.device)

    def empty(self, shape: Shape, dtype: torch.dtype) -> Tensor:
        """Not initialised."""
        if self.allocate is not None:
            return self.allocate(shape, dtype)
        return torch.empty(shape, dtype=dtype, device=self.device)

    def _filled(self, shape: Shape, rows: Iterable[Rows], dtype: torch.dtype) -> Tensor:
        """One tensor of pieces that follow each other."""
        tensor = self.empty(shape, dtype)
        begin = 0
        for piece in rows:
            end = begin + len(piece.data)
            tensor[begin:end] = to_tensor(piece.data)
            begin = end
        return tensor

    def _for_products(self, dense: Weight) -> Weight:
        if linear.prefers_onednn(self.dtype, self.device):
            return Weight.from_onednn(linear.to_onednn(dense.dense))
        return dense


def to_tensor(values: Array | Tensor) -> Tensor:
    """Over the same memory. Sources on the device give tensors: see `dummy_tensors`."""
    if isinstance(values, Tensor):
        return values
    if values.dtype == BFLOAT16:
        return torch.from_numpy(values).view(torch.bfloat16)
    return torch.from_numpy(values)
