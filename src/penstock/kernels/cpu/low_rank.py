"""Adapters in the layout that native code reads; the structs mirror native/low_rank.h."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import numpy as np

from penstock.kernels.arrays import Array
from penstock.kernels.cpu.arena import Arena
from penstock.kernels.cpu.packed import FLOATS, PackedMatrix, allocate, fill
from penstock.kernels.low_rank import PRODUCTS, DeltaMatrices

MOST_PARTS = max(map(len, PRODUCTS.values()))


class _NativePart(ctypes.Structure):
    _fields_ = (
        ("shrink", ctypes.c_void_p),
        ("expand", ctypes.c_void_p),
        ("offset", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("unused", ctypes.c_int32),
    )


class _NativeAdapter(ctypes.Structure):
    _fields_ = (("parts", ctypes.c_void_p), ("row_floats", ctypes.c_int64))


class PackedAdapter:
    """Owns its memory and the struct that native code reads at `address`. Matrices are float16, the ranks of A in
    panels of 16."""

    def __init__(self, deltas: Iterable[DeltaMatrices], num_layers: int) -> None:
        sites = num_layers * len(PRODUCTS)
        self._parts = (_NativePart * (sites * MOST_PARTS))()
        self._matrices: list[PackedMatrix] = []
        ranks = [0] * sites
        arena = Arena()
        for product, part, offset, a, b, scale in deltas:
            shrink, expand = _pack(a, arena), _pack(b, arena)
            self._matrices += (shrink, expand)
            ranks[product.site] += len(a)
            place = product.site * MOST_PARTS + part
            self._parts[place] = _NativePart(shrink.address, expand.address, offset, scale)
        self._native = _NativeAdapter(ctypes.addressof(self._parts), max(ranks))
        self.address = ctypes.addressof(self._native)
        self.num_bytes = sum(matrix.num_bytes for matrix in self._matrices)


def _pack(matrix: Array, arena: Arena) -> PackedMatrix:
    """As float16, unless its numbers are too large for that."""
    with np.errstate(over="ignore"):
        half = matrix.astype(np.float16)
    if not np.isfinite(half).all():
        half = np.ascontiguousarray(matrix, dtype=np.float32)
    rows, cols = half.shape
    segment = allocate(FLOATS[half.dtype], rows, cols, arena)
    fill(segment, 0, half)
    return PackedMatrix([segment], cols)
