"""Matrices in the layout that the native products read, which native/linear.h describes: from rows of codes, and back.

codes by row ──fill──► Segment, one or more ──► PackedMatrix ──address──► native code
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import DTypeLike

from penstock.kernels.arrays import BFLOAT16, Array, to_float32
from penstock.kernels.cpu.arena import Arena

PANEL = 16  # rows of a panel
BLOCK = 32  # inputs of a block


class Kind(IntEnum):
    """The types of codes, scales and offsets of a segment; as in native/linear.h."""

    F32 = 0
    F16 = 1
    BF16 = 2
    U4 = 3
    U4_OFFSET = 4
    U8 = 5
    U8_OFFSET = 6
    U8_HALVES = 7

    @property
    def is_float(self) -> bool:
        return self <= Kind.BF16


FLOATS = {np.dtype(np.float32): Kind.F32, np.dtype(np.float16): Kind.F16, BFLOAT16: Kind.BF16}
NIBBLES = (Kind.U4, Kind.U4_OFFSET)
OFFSETS = (Kind.U4_OFFSET, Kind.U8_OFFSET)
ZEROS = {Kind.U4: 8, Kind.U8: 128, Kind.U8_HALVES: 128}  # the code of weight 0


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Rows of one kind. The arrays are contiguous, padded to whole panels and blocks."""

    kind: Kind
    rows: int
    codes: Array  # [panels, blocks, quads, 16, 4] uint8, quads 4 or 8; [panels, cols, 16] of a float kind
    scales: Array | None = None  # [panels, blocks, 16] float16; [panels, blocks, 2, 16] of halves
    offsets: Array | None = None  # [panels, blocks, 16] float16

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in (self.codes, self.scales, self.offsets) if array is not None)


class _NativeSegment(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_int64),
        ("kind", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("codes", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
    )


class _NativeMatrix(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_int64),
        ("cols", ctypes.c_int64),
        ("segments", ctypes.c_void_p),
        ("num_segments", ctypes.c_int32),
        ("reads_float", ctypes.c_int32),
        ("reads_quantized", ctypes.c_int32),
        ("unused", ctypes.c_int32),
    )


class PackedMatrix:
    """[rows, cols]. Owns its memory and the struct that native code reads at `address`."""

    def __init__(self, segments: Sequence[Segment], cols: int) -> None:
        self.segments = tuple(segments)
        self.shape = (sum(segment.rows for segment in segments), cols)
        self.num_bytes = sum(segment.num_bytes for segment in segments)
        self.reads_float = any(segment.kind.is_float for segment in segments)
        self.reads_quantized = not all(segment.kind.is_float for segment in segments)
        self._native_segments = (_NativeSegment * len(segments))(*(_native(segment) for segment in segments))
        self._native = _NativeMatrix(
            *self.shape,
            ctypes.addressof(self._native_segments),
            len(segments),
            self.reads_float,
            self.reads_quantized,
        )
        self.address = ctypes.addressof(self._native)

    def unpack(self) -> Array:
        """[rows, cols] float32: the weights that the codes stand for."""
        return np.concatenate([unpack(segment, self.shape[1]) for segment in self.segments])


def _native(segment: Segment) -> _NativeSegment:
    pointers = (None if a is None else a.ctypes.data for a in (segment.codes, segment.scales, segment.offsets))
    return _NativeSegment(segment.rows, segment.kind, 0, *pointers)


def segment_bytes(kind: Kind, rows: int, cols: int) -> int:
    return _allocate(kind, rows, cols, _blank).num_bytes


def _blank(*shape: int, dtype: DTypeLike) -> Array:
    """Takes no memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def allocate(kind: Kind, rows: int, cols: int, arena: Arena) -> Segment:
    """A segment for `fill`."""
    return _allocate(kind, rows, cols, arena.empty)


def _allocate(kind: Kind, rows: int, cols: int, empty: Callable[..., Array]) -> Segment:
    panels, blocks = -(-rows // PANEL), -(-cols // BLOCK)
    if kind.is_float:
        dtype = next(dtype for dtype, made in FLOATS.items() if made is kind)
        return Segment(kind, rows, empty(panels, cols, PANEL, dtype=dtype))
    codes = empty(panels, blocks, 4 if kind in NIBBLES else 8, PANEL, 4, dtype=np.uint8)
    groups = (2,) if kind is Kind.U8_HALVES else ()
    scales = empty(panels, blocks, *groups, PANEL, dtype=np.float16)
    offsets = empty(panels, blocks, PANEL, dtype=np.float16) if kind in OFFSETS else None
    return Segment(kind, rows, codes, scales, offsets)


def fill(segment: Segment, begin: int, codes: Array, scales: Array | None = None, offsets: Array | None = None) -> None:
    """Rows from `begin` on, a multiple of 16; as many as there are codes: [n, cols] of a float kind, [n, blocks, 32]
    uint8, or [n, blocks, 16] of a 4-bit kind (input i in the low half of byte i, input 16 + i in the high half). Scales
    and offsets are [n, blocks], [n, blocks, 2] of halves.
    """
    panels = slice(begin // PANEL, -(-(begin + len(codes)) // PANEL))
    if segment.kind.is_float:
        segment.codes[panels] = _panels(codes).swapaxes(1, 2)
        return
    words = np.ascontiguousarray(codes).view(np.int32)  # [n, blocks, quads]
    segment.codes[panels].view(np.int32)[..., 0] = _panels(words).transpose(0, 2, 3, 1)
    for target, factors in ((segment.scales, scales), (segment.offsets, offsets)):
        if target is not None and factors is not None:
            target[panels] = np.moveaxis(_panels(factors), 1, -1)


def unpack(segment: Segment, cols: int) -> Array:
    """[rows, cols] float32"""
    if segment.kind.is_float:
        return to_float32(segment.codes.swapaxes(1, 2).reshape(-1, cols)[: segment.rows])
    assert segment.scales is not None
    codes = segment.codes.transpose(0, 3, 1, 2, 4)  # [panels, 16, blocks, quads, 4]
    codes = codes.reshape(*codes.shape[:3], -1)
    if segment.kind in NIBBLES:
        codes = np.concatenate((codes & 15, codes >> 4), axis=3)
    values = codes.astype(np.float32) - np.float32(ZEROS.get(segment.kind, 0))
    scales = np.moveaxis(segment.scales.astype(np.float32), -1, 1)  # [panels, 16, blocks] or [panels, 16, blocks, 2]
    width = 16 if segment.kind is Kind.U8_HALVES else BLOCK
    values = values.reshape(*values.shape[:3], -1, width) * scales.reshape(*scales.shape[:3], -1, 1)
    if segment.offsets is not None:
        values += segment.offsets.astype(np.float32).swapaxes(1, 2)[..., None, None]
    rows = len(values) * PANEL
    return np.ascontiguousarray(values.reshape(rows, -1)[: segment.rows, :cols])


def _panels(rows: Array) -> Array:
    """[rows, ...] -> [panels, 16, ...], the last padded with zeros."""
    if missing := -len(rows) % PANEL:
        rows = np.concatenate((rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)))
    return rows.reshape(-1, PANEL, *rows.shape[1:])
