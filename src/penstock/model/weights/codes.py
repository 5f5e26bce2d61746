"""A quantized matrix as codes with a scale for each group of inputs, whatever format it was stored in: what
`kernels.coded` is made of. Here in numpy arrays, on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from penstock.errors import ModelInvalid
from penstock.kernels.arrays import BFLOAT16, Array, Dtype, to_float32
from penstock.model.weights.source import Span
from penstock.store.hf_quantization import Inputs

CodeName = Literal["u4", "u5", "u6", "s8", "e4m3", "e2m1"]  # as `kernels.coded.Code` has them

# The code of weight 0, where none is stored
ZEROS: dict[CodeName, int] = {"u4": 8, "u5": 16, "u6": 32}
SCALES: dict[Dtype, np.dtype[Any]] = {
    "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16,
    "float32": np.dtype(np.float32),
}
LARGEST_HALF = 65520.0  # from here on float16 rounds to infinity


class Layout(NamedTuple):
    """How a matrix is coded: what its memory and the choice of a kernel depend on."""

    code: CodeName
    group: int  # inputs that share a scale; 0: a row has one
    scale: Dtype = "float16"  # of scales and offsets
    shift: Literal["zeros", "offsets"] | None = None
    inputs: Inputs | None = None  # the type that a product with many rows may round its inputs to
    order: int = 0  # other than 0: groups are not runs of inputs; the same number stands for the same order

    def cut(self, cols: int, columns: Span) -> Layout | None:
        """Of these columns, of `cols`; None: they are not whole groups of one size."""
        begin, end = columns
        if (begin, end) == (0, cols):
            return self
        if self.order:
            return None
        return self._replace(group=gcd(self.group, begin, end)) if self.group else self


class Codes(NamedTuple):
    """Rows of a quantized matrix."""

    layout: Layout
    codes: Array  # [rows, cols] uint8; of s8 as two's complement
    scales: Array  # [rows, groups]
    shifts: Array | None = None  # [rows, groups]: zeros, uint8, or offsets
    order: Array | None = None  # [cols]: the inputs that the columns are multiplied with, where groups are not runs

    def map_rows(self, change: Callable[[Array], Array]) -> Codes:
        """With rows in another order."""
        shifts = None if self.shifts is None else change(self.shifts)
        return self._replace(codes=change(self.codes), scales=change(self.scales), shifts=shifts)

    def cut_columns(self, columns: Span) -> Codes:
        """Where `Layout.cut` gives a layout."""
        cols = self.codes.shape[1]
        layout = self.layout.cut(cols, columns)
        assert layout is not None
        scales, shifts = self.scales, self.shifts
        if layout.group:
            repeat = self.layout.group // layout.group
            groups = slice(columns.begin // layout.group, columns.end // layout.group)
            scales = np.repeat(scales, repeat, axis=1)[:, groups]
            shifts = None if shifts is None else np.repeat(shifts, repeat, axis=1)[:, groups]
        return Codes(layout, self.codes[:, slice(*columns)], scales, shifts, self.order)


class CodedPiece(NamedTuple):
    """Of a matrix: some of its rows, which are coded alike."""

    rows: int
    cols: int
    layout: Layout


class StoredCodes(NamedTuple):
    """The codes of a matrix, which are read when they are asked for."""

    layout: Layout
    read: Callable[[Span], Codes]  # of these rows


def scale_type(scales: Array) -> Dtype:
    """That scales of a checkpoint are kept in."""
    return "float16" if scales.dtype == np.float16 else "bfloat16" if scales.dtype == BFLOAT16 else "float32"


def as_scales(scales: Array) -> Array:
    """In that type."""
    return scales if scales.dtype in (np.float16, BFLOAT16) else to_float32(scales)


def stack(parts: Sequence[Codes]) -> Codes:
    """Rows of one matrix below each other."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*((part.codes, part.scales, part.shifts) for part in parts), strict=True)
    codes, scales, shifts = (None if some[0] is None else np.concatenate(some) for some in columns)
    return parts[0]._replace(codes=codes, scales=scales, shifts=shifts)


def blank_codes(rows: int, cols: int, layout: Layout) -> Codes:
    """Zeros that take no memory."""

    def zeros(dtype: DTypeLike, width: int) -> Array:
        return np.broadcast_to(np.zeros((), dtype), (rows, width))

    groups = cols // layout.group if layout.group else 1
    scales = zeros(SCALES[layout.scale], groups)
    shifts = None if layout.shift is None else zeros(np.uint8, groups) if layout.shift == "zeros" else scales
    return Codes(layout, zeros(np.uint8, cols), scales, shifts, np.arange(cols) if layout.order else None)


def checked(name: str, stored: StoredCodes) -> StoredCodes:
    """Numbers of the tensor `name` that are not finite raise ModelInvalid when it is read."""

    def read(rows: Span) -> Codes:
        codes = stored.read(rows)
        _check_finite(name, codes)
        return codes

    return StoredCodes(stored.layout, read)


def _check_finite(name: str, codes: Codes) -> None:
    factors = [to_float32(factors) for factors in (codes.scales, codes.shifts) if factors is not None]
    largest = LARGEST_HALF if codes.layout.scale == "float16" else np.inf
    finite = all(np.abs(values).max(initial=0) < largest for values in factors)  # NaN is not
    if finite and codes.layout.code == "e4m3":
        finite = int((codes.codes & 127).max(initial=0)) < 127
    if not finite:
        raise ModelInvalid(f"weights of {name} are not finite, or their scales are too large", param="model")
