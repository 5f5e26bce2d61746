"""Weights for CUDA that keep the codes of a quantized checkpoint, or are rounded to codes when they are loaded.

Embedding tables stay floats, and so do heads that a checkpoint has as floats. Codes that no product reads become floats
of the compute dtype: groups that are no multiples of 16 inputs, and FP8 on devices without it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import prod
from typing import cast

import torch
from torch import Tensor

from penstock.kernels.arrays import Array, Dtype
from penstock.kernels.coded import SHORTEST_RUN, Code, CodedMatrix, CodedRows, Coding, Inputs, empty, fill
from penstock.kernels.weight import Weight
from penstock.model.weights.codes import CodedPiece, Layout, StoredRows
from penstock.model.weights.dense_form import DenseForm, to_tensor
from penstock.model.weights.map import Kind
from penstock.model.weights.rounding import Rounding, round_rows, rounded_coding, rounded_inputs
from penstock.model.weights.source import Rows, Shape
from penstock.model.weights.unpack_codes import Codes, unpack

FP8_CAPABILITY = (8, 9)  # of the first devices with FP8
INPUTS = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
ORDER = torch.int64


@dataclass(frozen=True, slots=True)
class CodedForm:
    """Implements `DeviceForm`."""

    dense: DenseForm  # of all that has no codes
    quantize: Rounding | None = None  # what to make of matrices that are stored as floats; None: keep them
    has_fp8: bool = True
    _lock: threading.Lock = field(default_factory=threading.Lock)  # one matrix at a time has temporary memory

    def reads_blocks(self, stored: str) -> bool:
        return False

    def keeps_codes(self, kind: Kind, pieces: Sequence[CodedPiece | None]) -> bool:
        known = [piece.layout for piece in pieces if piece is not None]
        return (
            kind != "table"
            and len(known) == len(pieces)
            and len({layout.order for layout in known}) == 1  # x is put into one order
            and all(self._reads(layout) for layout in known)
        )

    def unpacked(self, rows: Sequence[StoredRows]) -> Codes:
        with self._lock:
            return unpack(rows, self.dense.device)

    def coded(self, pieces: Sequence[CodedPiece], codes: Iterable[Codes]) -> Weight:
        filling = _Filling(self._parts(_codings(pieces), pieces[0].cols), self._lock)
        order = None
        for read in codes:
            filling.add(read.codes, read.scales, read.shifts)
            order = read.order
        return self._weight(filling.parts, None if order is None else self._order(order), _inputs(pieces))

    def matrix(self, kind: Kind, shape: Shape, rows: Iterable[Rows]) -> Weight:
        coding = self._coding(kind, shape)
        if coding is None:
            return self.dense.matrix(kind, shape, rows)
        assert self.quantize is not None
        filling = _Filling(self._parts([(shape[0], coding)], shape[1]), self._lock)
        for piece in rows:
            for codes, scales in round_rows(to_tensor(piece.data).to(self.dense.device), coding):
                filling.add(codes, scales)
        return self._weight(filling.parts, None, rounded_inputs(self.quantize))

    def vector(self, kind: Kind, shape: Shape, rows: Iterable[Rows]) -> Tensor:
        return self.dense.vector(kind, shape, rows)

    def tied_head(self, table: Weight) -> Weight:
        return self.dense.tied_head(table)

    def constant(self, values: Array) -> Tensor:
        return self.dense.constant(values)

    def coded_bytes(self, pieces: Sequence[CodedPiece]) -> int:
        cols = pieces[0].cols
        order = cols * ORDER.itemsize if pieces[0].layout.order else 0
        return order + sum(coding.num_bytes(rows, cols) for rows, coding in _codings(pieces))

    def parameter_bytes(self, kind: Kind, shape: Shape) -> int:
        coding = self._coding(kind, shape)
        if coding is not None:
            return coding.num_bytes(shape[0], shape[1])
        return prod(shape) * (torch.float32 if kind == "norm" else self.dense.dtype).itemsize

    def _reads(self, layout: Layout) -> bool:
        return layout.group % SHORTEST_RUN == 0 and (self.has_fp8 or layout.code != "e4m3")

    def _coding(self, kind: Kind, shape: Shape) -> Coding | None:
        """That a matrix of floats is rounded to; None: it stays as it is."""
        return rounded_coding(self.quantize, shape[1]) if self.quantize is not None and kind == "matrix" else None

    def _parts(self, codings: Iterable[tuple[int, Coding]], cols: int) -> list[CodedRows]:
        return [empty(coding, rows, cols, self.dense.device, self.dense.allocate) for rows, coding in codings]

    def _weight(self, parts: Sequence[CodedRows], order: Tensor | None, inputs: Inputs | None) -> Weight:
        dtype = cast(Dtype, str(self.dense.dtype).removeprefix("torch."))
        return Weight.from_coded(CodedMatrix(parts, order=order, inputs=inputs), dtype)

    def _order(self, order: Tensor) -> Tensor:
        return self.dense.empty(order.shape, ORDER).copy_(order)


class _Filling:
    """Writes codes to parts that follow each other."""

    def __init__(self, parts: Sequence[CodedRows], lock: threading.Lock) -> None:
        self.parts, self._lock = parts, lock
        self._part, self._begin = 0, 0

    def add(self, codes: Tensor, scales: Tensor, shifts: Tensor | None = None) -> None:
        part = self.parts[self._part]
        with self._lock:
            fill(part, self._begin, codes, scales, shifts)
        self._begin += len(codes)
        if self._begin == part.rows:
            self._part, self._begin = self._part + 1, 0


def _codings(pieces: Sequence[CodedPiece]) -> list[tuple[int, Coding]]:
    """Rows that are coded alike, and how."""
    groups = groupby(pieces, key=lambda piece: coding_of(piece.layout))
    return [(sum(piece.rows for piece in some), coding) for coding, some in groups]


def coding_of(layout: Layout) -> Coding:
    return Coding(Code(layout.code), layout.group, getattr(torch, layout.scale), layout.shift)


def _inputs(pieces: Sequence[CodedPiece]) -> Inputs | None:
    """Of all pieces."""
    found = {(piece.layout.inputs, piece.layout.group) for piece in pieces}
    inputs, group = found.pop()
    return None if found or inputs is None else Inputs(INPUTS[inputs], group=group)
