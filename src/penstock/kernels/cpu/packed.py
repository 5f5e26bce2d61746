"""Matrices in the layout that the native products read, which native/linear.h describes: from rows of codes, and back.

codes by row ──fill──► Segment, one or more ──► PackedMatrix ──address──► native code
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import DTypeLike

from penstock.kernels.arrays import BFLOAT16, Array, to_float32
from penstock.kernels.cpu.arena import Arena
from penstock.kernels.cpu.library import native_library

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


def fill(
    segment: Segment,
    begin: int,
    codes: Array,
    scales: Array | None = None,
    offsets: Array | None = None,
    *,
    flip: int = 0,
) -> None:
    """Rows from `begin` on, a multiple of 16; as many as there are codes: [n, cols] of a float kind, [n, blocks, 32]
    uint8, or [n, blocks, 16] of a 4-bit kind (input i in the low half of byte i, input 16 + i in the high half). Scales
    and offsets are [n, blocks], [n, blocks, 2] of halves. Fields of larger blocks need not be copied out of them.
    `flip`: bits to invert in each code.
    """
    first = begin // PANEL
    if segment.kind.is_float:
        _to_panels(codes.astype(segment.codes.dtype, copy=False)[:, None], segment.codes[first:])
        return
    if scales is not None and scales.ndim == 2:
        codes = _without_unscaled(segment.kind, codes, scales.astype(np.float16, copy=False), flip)
    _to_panels(codes, segment.codes[first:], flip=flip * 0x01010101, unit_bytes=4)
    for target, factors in ((segment.scales, scales), (segment.offsets, offsets)):
        if target is not None and factors is not None:
            halves = factors.astype(np.float16, copy=False)
            _to_panels(halves if halves.ndim == 3 else halves[..., None], target[first:])


def _without_unscaled(kind: Kind, codes: Array, scales: Array, flip: int) -> Array:
    """With the code of weight 0 where the scale is 0, as the native products with many tokens expect it. Q4_K has other
    codes there, and so has a scale that is too small for float16."""
    unscaled = scales == 0
    if not unscaled.any():
        return codes
    zero = ZEROS.get(kind, 0) * (0x11 if kind in NIBBLES else 1)
    return np.where(unscaled[..., None], np.uint8(zero ^ flip), codes)


def _to_panels(rows: Array, out: Array, *, flip: int = 0, unit_bytes: int | None = None) -> None:
    """`rows` [n, groups, units]; each group is contiguous."""
    if rows.shape[2] > 1 and rows.strides[2] != rows.itemsize:
        rows = np.ascontiguousarray(rows)
    unit_bytes = unit_bytes or rows.itemsize
    units = rows.shape[2] * rows.itemsize // unit_bytes
    row_bytes, group_bytes = rows.strides[:2]
    assert out.flags.c_contiguous
    native_library().penstock_to_panels(
        rows.ctypes.data, len(rows), row_bytes, rows.shape[1], group_bytes, units, unit_bytes, flip, out.ctypes.data
    )


def quantize(blocks: Array, bits: Literal[4, 8]) -> tuple[Array, Array]:
    """Codes and scales for `fill` of `blocks` [n, blocks, 32] float32."""
    codes = np.empty((*blocks.shape[:2], 4 * bits), dtype=np.uint8)
    scales = np.empty(blocks.shape[:2], dtype=np.float16)
    assert blocks.flags.c_contiguous
    native_library().penstock_quantize_weights(
        blocks.ctypes.data, scales.size, bits, codes.ctypes.data, scales.ctypes.data
    )
    return codes, scales


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
