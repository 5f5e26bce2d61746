"""Adapters in the layout that native code reads; the structs mirror native/low_rank.h."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from itertools import groupby

import numpy as np

from penstock.kernels.arrays import Array
from penstock.kernels.cpu.arena import Arena
from penstock.kernels.cpu.packed import FLOATS, PANEL, Segment, allocate, fill
from penstock.kernels.low_rank import MOST_PARTS, DeltaMatrices, num_sites


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


class PackedAdapter:
    """Owns its memory and the struct that native code reads at `address`. Matrices are float16, the ranks of A in
    panels of 16. Those of a product lie one after the other, in the order in which a step reads them."""

    def __init__(self, deltas: Iterable[DeltaMatrices], num_layers: int) -> None:
        """`deltas` come product by product."""
        self._parts = (_NativePart * (num_sites(num_layers) * MOST_PARTS))()
        self._segments: list[Segment] = []
        self._arena, row_floats = Arena(), 0
        for product, parts in groupby(deltas, lambda one: one.product):
            row_floats = max(row_floats, self._add(product.site * MOST_PARTS, list(parts)))
        self._native = _NativeAdapter(ctypes.addressof(self._parts), row_floats)
        self.address = ctypes.addressof(self._native)
        self.num_bytes = sum(segment.num_bytes for segment in self._segments)

    def _add(self, place: int, deltas: list[DeltaMatrices]) -> int:
        """Gives the ranks of all parts, in whole panels."""
        pairs = [_halves(one.a, one.b) for one in deltas]
        shrinks = [self._pack(a) for a, _ in pairs]
        expands = [self._pack(b) for _, b in pairs]
        for one, shrink, expand in zip(deltas, shrinks, expands, strict=True):
            rank, inputs = one.a.shape
            self._parts[place + one.part] = _NativePart(
                shrink.codes.ctypes.data,
                expand.codes.ctypes.data,
                inputs,
                rank,
                len(one.b),
                one.offset,
                one.scale,
                shrink.kind,
            )
        return sum(len(shrink.codes) * PANEL for shrink in shrinks)

    def _pack(self, matrix: Array) -> Segment:
        rows, cols = matrix.shape
        segment = allocate(FLOATS[matrix.dtype], rows, cols, self._arena)
        fill(segment, 0, matrix)
        self._segments.append(segment)
        return segment


def _halves(a: Array, b: Array) -> tuple[Array, Array]:
    """As float16, unless numbers are too large for that."""
    if a.dtype == b.dtype == np.float16:
        return a, b
    with np.errstate(over="ignore"):
        halves = a.astype(np.float16), b.astype(np.float16)
    if all(np.isfinite(half).all() for half in halves):
        return halves
    return a.astype(np.float32), b.astype(np.float32)
