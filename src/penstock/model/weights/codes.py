"""A quantized matrix as codes with a scale for each group of inputs, as a checkpoint stores it. `unpack_codes` makes
tensors of it, on a device that does that faster than a processor."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from penstock.kernels.arrays import BFLOAT16, Array, Dtype, to_float32
from penstock.model.weights.source import Span
from penstock.store.hf_quantization import Inputs

CodeName = Literal["u4", "u5", "u6", "s8", "e4m3", "e2m1"]  # as `kernels.coded.Code` has them

# How codes are stored. Blocks of GGUF have scales and offsets, too. octets: one code each. flipped: the same with the
# upper bit inverted. nibbles: two inputs an octet, the first in the low half. columns: int32 words [words, rows] of
# nibbles, or of flipped octets. awq: int32 words [cols, rows / 8] of nibbles, in an order of their own.
Packing = Literal[
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "octets", "flipped", "nibbles", "columns", "awq"
]

SCALES: dict[Dtype, np.dtype[Any]] = {
    "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16,
    "float32": np.dtype(np.float32),
}


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


BLOCKS: dict[str, Layout] = {
    "Q4_0": Layout("u4", 32),
    "Q4_1": Layout("u4", 32, shift="offsets"),
    "Q5_0": Layout("u5", 32),
    "Q5_1": Layout("u5", 32, shift="offsets"),
    "Q8_0": Layout("s8", 32),
    "Q4_K": Layout("u4", 32, shift="offsets"),
    "Q5_K": Layout("u5", 32, shift="offsets"),
    "Q6_K": Layout("u6", 16),
}


class StoredRows(NamedTuple):
    """Rows of a matrix, in the checkpoint's own words."""

    name: str  # of the matrix, for errors
    layout: Layout
    packing: Packing
    shape: tuple[int, int]
    words: Array
    scales: Array | None = None  # [rows, groups]; None: the words have them
    shifts: Array | None = None  # [rows, groups]: zeros, uint8, or offsets
    order: Array | None = None  # [cols]: the inputs in the order of their groups, where those are not runs
    first: int = 0  # row among those that the words hold


class StoredCodes(NamedTuple):
    """The codes of a matrix, which are read when they are asked for."""

    layout: Layout
    read: Callable[[Span], StoredRows]  # of these rows


class CodedPiece(NamedTuple):
    """Of a matrix: some of its rows, which are coded alike."""

    rows: int
    cols: int
    layout: Layout


def scale_type(scales: Array) -> Dtype:
    """That scales of a checkpoint are kept in."""
    return "float16" if scales.dtype == np.float16 else "bfloat16" if scales.dtype == BFLOAT16 else "float32"


def as_scales(scales: Array) -> Array:
    """In that type."""
    return scales if scales.dtype in (np.float16, BFLOAT16) else to_float32(scales)


def blank_rows(name: str, rows: int, cols: int, layout: Layout) -> StoredRows:
    """Zeros that take no memory."""

    def zeros(dtype: DTypeLike, width: int) -> Array:
        return np.broadcast_to(np.zeros((), dtype), (rows, width))

    groups = cols // layout.group if layout.group else 1
    scales = zeros(SCALES[layout.scale], groups)
    shifts = None if layout.shift is None else zeros(np.uint8, groups) if layout.shift == "zeros" else scales
    order = np.arange(cols) if layout.order else None
    return StoredRows(name, layout, "octets", (rows, cols), zeros(np.uint8, cols), scales, shifts, order)
