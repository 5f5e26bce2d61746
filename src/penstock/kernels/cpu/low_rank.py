"""Adapters in the layout that native code reads; the structs mirror native/low_rank.h."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

import numpy as np

from penstock.kernels.arrays import Array
from penstock.kernels.cpu.arena import Arena
from penstock.kernels.cpu.library import native_library
from penstock.kernels.cpu.packed import FLOATS, PANEL, Kind, allocate, fill
from penstock.kernels.low_rank import MOST_PARTS, DeltaMatrices, num_sites

CODES = len(Kind)  # another kind
SCALE_BYTES = 2  # of a row of a panel


class _NativePart(ctypes.Structure):
    _fields_ = (
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("inputs", "rank", "outputs", "offset")),
        ("scale", ctypes.c_float),
        ("kind", ctypes.c_int32),
    )


class _NativeAdapter(ctypes.Structure):
    _fields_ = (("parts", ctypes.c_void_p), ("row_floats", ctypes.c_int64))


class _Packed(NamedTuple):
    """A matrix."""

    array: Array
    factor: float  # of all its numbers

    @classmethod
    def of_codes(cls, matrix: Array, arena: Arena) -> _Packed:
        rows, cols = matrix.shape
        array = arena.empty(-(-rows // PANEL) * panel_bytes(cols), dtype=np.uint8)
        factor = native_library().penstock_pack_codes(
            np.ascontiguousarray(matrix).ctypes.data, rows, cols, matrix.dtype == np.float16, array.ctypes.data
        )
        return cls(array, factor)

    @classmethod
    def of_floats(cls, matrix: Array, arena: Arena) -> _Packed:
        rows, cols = matrix.shape
        segment = allocate(FLOATS[matrix.dtype], rows, cols, arena)
        fill(segment, 0, matrix)
        return cls(segment.codes, 1.0)


class PackedAdapter:
    """Owns its memory and the struct that native code reads at `address`. The ranks of A are in panels of 16. The
    matrices of a product lie one after the other, in the order in which a step reads them."""

    def __init__(self, deltas: Iterable[DeltaMatrices], num_layers: int, *, codes: bool = False) -> None:
        """`deltas` come product by product. `codes`: matrices of layers have 8 bits a number, with a scale for each
        row; otherwise they are float16."""
        self._parts = (_NativePart * (num_sites(num_layers) * MOST_PARTS))()
        self._arrays: list[Array] = []
        self._arena, row_floats = Arena(), 0
        for product, parts in groupby(deltas, lambda one: one.product):
            some = list(parts)
            self._add(product.site * MOST_PARTS, some, codes=codes and product.layer is not None)
            row_floats = max(row_floats, sum(-(-len(one.a) // PANEL) * PANEL for one in some))
        self._native = _NativeAdapter(ctypes.addressof(self._parts), row_floats)
        self.address = ctypes.addressof(self._native)
        self.num_bytes = sum(array.nbytes for array in self._arrays)

    def _add(self, place: int, deltas: list[DeltaMatrices], *, codes: bool) -> None:
        pairs = [(one.a, one.b) if codes else _halves(one.a, one.b) for one in deltas]
        pack = _Packed.of_codes if codes else _Packed.of_floats
        shrinks = [pack(a, self._arena) for a, _ in pairs]
        expands = [pack(b, self._arena) for _, b in pairs]
        self._arrays += [one.array for one in (*shrinks, *expands)]
        for one, (a, _), shrink, expand in zip(deltas, pairs, shrinks, expands, strict=True):
            rank, inputs = a.shape
            self._parts[place + one.part] = _NativePart(
                shrink.array.ctypes.data,
                expand.array.ctypes.data,
                inputs,
                rank,
                len(one.b),
                one.offset,
                one.scale * shrink.factor * expand.factor,
                CODES if codes else FLOATS[a.dtype],
            )


def panel_bytes(cols: int) -> int:
    """Of codes."""
    return PANEL * (cols + SCALE_BYTES)


def _halves(a: Array, b: Array) -> tuple[Array, Array]:
    """As float16, unless numbers are too large for that."""
    if a.dtype == b.dtype == np.float16:
        return a, b
    with np.errstate(over="ignore"):
        halves = a.astype(np.float16), b.astype(np.float16)
    if all(np.isfinite(half).all() for half in halves):
        return halves
    return a.astype(np.float32), b.astype(np.float32)
