"""One quantized linear layer of a Hugging Face checkpoint: a function per format, from its tensors to its matrix.

What decides the memory that the matrix will take is read at once: shapes, zero points and the order of groups. Codes
are read when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, prod
from typing import Literal, NamedTuple

import numpy as np

from penstock.kernels.arrays import Array, to_float32
from penstock.model.weights.codes import Layout, Packing, StoredCodes, StoredRows, as_scales, scale_type
from penstock.model.weights.grouped_codes import (
    FLOATS,
    GroupedCodes,
    block_type,
    group_order,
    unpack,
    unpack_awq,
    unpack_gptq,
    unpack_zeros,
)
from penstock.model.weights.layer_tensors import INTEGERS, LayerTensors
from penstock.model.weights.small_floats import (
    E4M3,
    NVFP4_GROUP,
    fp8_to_floats,
    nvfp4_to_blocks,
    nvfp4_to_floats,
)
from penstock.model.weights.source import Shape, Span
from penstock.store.hf_quantization import Inputs, Method, Quantization

Bits = Literal[4, 8]


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    shape: Shape
    tensors: tuple[str, ...]  # that it is stored in
    stored_type: str  # of its blocks; "F16": it has none
    floats: Callable[[Span, Span], Array]  # of these rows and columns, float32
    blocks: Callable[[], Array]  # [rows, bytes of a row] uint8
    codes: StoredCodes | None = None  # None: their groups are not equal


Reader = Callable[[LayerTensors, Quantization], QuantizedMatrix]


def reader(what: str, stored: str, method: Method) -> Reader | None:
    """For a tensor by the last part of its name and its type; None: no layer's codes are in it."""
    if what == "qweight":
        return _awq if method == "awq" else _gptq
    if what == "weight_packed":
        return _nvfp4 if stored == "U8" else _packed
    if what == "weight":
        return {"I8": _int8, "F8_E4M3": _fp8, "U8": _nvfp4}.get(stored)
    return None


def _awq(tensors: LayerTensors, _: Quantization) -> QuantizedMatrix:
    cols, words = tensors.matrix_shape("qweight", "I32")
    names = tensors.names("scales", "qzeros")

    def zeros() -> Array:
        return unpack_awq(tensors.read("qzeros", "I32"))

    def codes(rows: Span, columns: Span) -> Array:
        taken = _words(rows, 8)
        return unpack_awq(tensors.read("qweight", "I32")[slice(*columns), slice(*taken)])[_within(rows, taken, 8)]

    def stored(rows: Span) -> tuple[Array, int]:
        taken = _words(rows, 8)
        return tensors.read("qweight", "I32")[:, slice(*taken)], rows.begin - taken.begin * 8

    shape = (words * 8, cols)
    tensors.check_groups("scales", tensors.shape("scales")[::-1], shape)
    groups = tensors.shape("scales")[0]
    tensors.check_fit("qzeros", shape, (groups, words))
    words_of = Words(tensors.name("qweight"), "awq", stored)
    grouped = _Grouped(shape, 4, words_of, codes, lambda: tensors.scales("scales").T, zeros)
    return grouped.matrix(names, groups)


def _gptq(tensors: LayerTensors, quantization: Quantization) -> QuantizedMatrix:
    words, rows = tensors.matrix_shape("qweight", "I32")
    ordered = ("g_idx",) if quantization.has_order else ()
    names = tensors.names("scales", "qzeros", *ordered, optional=() if ordered else ("g_idx",))
    bits = _gptq_bits(tensors, quantization, rows)
    shape = (rows, words * 32 // bits)
    tensors.check_groups("scales", tensors.shape("scales")[::-1], shape)
    groups = tensors.shape("scales")[0]
    tensors.check_fit("qzeros", shape, (groups, -(-rows * bits // 32)))
    group_of = tensors.group_of("g_idx", shape[1], groups, may_be_unused=False)

    def zeros() -> Array:
        return unpack_zeros(tensors.read("qzeros", "I32"), bits, quantization.zero_offset)[:, :rows].T

    def codes(rows: Span, columns: Span) -> Array:
        taken = _words(columns, 32 // bits)
        unpacked = unpack_gptq(tensors.read("qweight", "I32")[slice(*taken), slice(*rows)], bits)
        return unpacked[:, _within(columns, taken, 32 // bits)]

    def stored(rows: Span) -> tuple[Array, int]:
        return tensors.read("qweight", "I32")[:, slice(*rows)], 0

    words_of = Words(tensors.name("qweight"), "columns", stored)
    grouped = _Grouped(shape, bits, words_of, codes, lambda: tensors.scales("scales").T, zeros, group_of)
    return grouped.matrix(names, groups)


def _gptq_bits(tensors: LayerTensors, quantization: Quantization, rows: int) -> Bits:
    """Of a config with exceptions (`dynamic`) the zero points of a layer tell."""
    if quantization.stored != "mixed":
        return 8 if quantization.stored == "int8" else 4
    words = tensors.matrix_shape("qzeros", "I32")[1]
    return 4 if words == -(-rows // 8) else 8


def _packed(tensors: LayerTensors, quantization: Quantization) -> QuantizedMatrix:
    """compressed-tensors: 4 or 8 bits in words, zero points in words along the rows, or, before 0.9.4, as they are."""
    what, zero_point = "weight_packed", "weight_zero_point"
    rows, words = tensors.matrix_shape(what, "I32")
    needed = (zero_point,) * quantization.has_zeros + ("weight_g_idx",) * quantization.has_order
    others = tuple(one for one in (zero_point, "weight_g_idx") if one not in needed)
    names = tensors.names("weight_scale", "weight_shape", *needed, optional=others)
    cols = int(tensors.read("weight_shape", *INTEGERS).ravel()[-1])
    bits: Bits = 4 if words == -(-cols // 8) and quantization.stored != "int8" else 8
    if cols < 1 or words != -(-cols * bits // 32) or (bits == 8 and quantization.stored == "int4"):
        raise tensors.misfit(what, (rows, cols))
    tensors.check_groups("weight_scale", tensors.shape("weight_scale"), (rows, cols))
    groups = tensors.shape("weight_scale")[1]
    group_of = tensors.group_of("weight_g_idx", cols, groups, may_be_unused=not quantization.has_order)
    in_words = tensors.has(zero_point) and tensors.type(zero_point) != "I8"
    if tensors.has(zero_point):
        tensors.check_fit(zero_point, (rows, cols), (-(-rows * bits // 32), groups) if in_words else (rows, groups))

    def zeros() -> Array:
        if not tensors.has(zero_point):
            return np.full((1, 1), 1 << (bits - 1), dtype=np.uint8)
        if not in_words:
            return tensors.read(zero_point, "I8").view(np.uint8) + np.uint8(1 << (bits - 1))
        return unpack(tensors.read(zero_point, "I32").T, bits)[:, :rows].T

    def codes(rows: Span, columns: Span) -> Array:
        taken = _words(columns, 32 // bits)
        unpacked = unpack(tensors.read(what, "I32")[slice(*rows), slice(*taken)], bits)
        return np.ascontiguousarray(unpacked[:, _within(columns, taken, 32 // bits)])

    packing: Packing = "nibbles" if bits == 4 else "flipped"
    words_of = Words(tensors.name(what), packing, lambda rows: (tensors.read(what, "I32")[slice(*rows)], 0))
    grouped = _Grouped((rows, cols), bits, words_of, codes, lambda: tensors.scales("weight_scale"), zeros, group_of)
    return grouped.matrix(names, groups)


def _int8(tensors: LayerTensors, quantization: Quantization) -> QuantizedMatrix:
    """compressed-tensors: a scale for the matrix, for each row, or for groups of a row."""
    shape, zero_point = tensors.matrix_shape("weight", "I8"), "weight_zero_point"
    needed = (zero_point,) if quantization.has_zeros else ()
    names = tensors.names("weight_scale", *needed, optional=() if needed else (zero_point,))
    scales = prod(tensors.shape("weight_scale"))
    groups = max(scales // shape[0], 1)
    if scales != 1:
        tensors.check_groups("weight_scale", (scales // groups, groups), shape)
    if tensors.has(zero_point) and prod(tensors.shape(zero_point)) != scales:
        raise tensors.misfit(zero_point, shape)

    def by_row(factors: Array) -> Array:
        return np.broadcast_to(factors.reshape(-1, groups), (shape[0], groups))

    def zeros() -> Array:
        if not tensors.has(zero_point):
            return np.full((1, 1), 128, dtype=np.uint8)
        return by_row(tensors.read(zero_point, "I8").view(np.uint8) ^ 0x80)

    def stored(rows: Span) -> Array:
        return tensors.read("weight", "I8").view(np.uint8)[slice(*rows)]

    def codes(rows: Span, columns: Span) -> Array:
        return stored(rows)[:, slice(*columns)] ^ 0x80

    words_of = Words(tensors.name("weight"), "octets", lambda rows: (stored(rows), 0))
    scales_of, inputs = (lambda: by_row(tensors.scales("weight_scale"))), _only("int8", quantization)
    return _Grouped(shape, 8, words_of, codes, scales_of, zeros, inputs=inputs).matrix(names, groups)


def _fp8(tensors: LayerTensors, quantization: Quantization) -> QuantizedMatrix:
    """A scale for the matrix, for each row, or for blocks of rows and columns."""
    is_inv = tensors.has("weight_scale_inv") or (quantization.method == "fp8" and not tensors.has("weight_scale"))
    what = "weight_scale_inv" if is_inv else "weight_scale"
    rows, cols = shape = tensors.matrix_shape("weight", "F8_E4M3")
    names, scales = tensors.names(what), tensors.shape(what)
    if len(scales) == 4:
        scales = scales[::2]  # ModelOpt: [rows of blocks, 1, columns of blocks, 1]
    whole, by_row = prod(scales) == 1, scales in ((rows, 1), (rows,))
    block = shape if whole else (1, cols) if by_row else quantization.block or shape
    grid = (-(-rows // block[0]), -(-cols // block[1]))
    if not whole and not by_row and (scales != grid or prod(tensors.shape(what)) != prod(grid)):
        raise tensors.misfit(what, shape)

    def floats(rows: Span, columns: Span) -> Array:
        codes = tensors.read("weight", "F8_E4M3")[slice(*rows), slice(*columns)]
        return fp8_to_floats(codes, to_float32(tensors.scales(what).reshape(grid)), block, (rows.begin, columns.begin))

    def codes(rows: Span) -> StoredRows:
        factors = as_scales(tensors.scales(what).reshape(grid))[np.arange(*rows) // block[0]]
        taken = tensors.read("weight", "F8_E4M3")[slice(*rows)]
        return StoredRows(tensors.name("weight"), layout, "octets", (len(taken), cols), taken, factors)

    group = block[1] if grid[1] > 1 else 0
    layout = Layout("e4m3", group, scale_type(tensors.scales(what)), inputs=_only("fp8", quantization))
    stored = None if cols % block[1] else StoredCodes(layout, codes)
    return QuantizedMatrix(shape, names, FLOATS, floats, _no_blocks, stored)


def _nvfp4(tensors: LayerTensors, _: Quantization) -> QuantizedMatrix:
    """A scale in FP8 for 16 inputs, and one for all: compressed-tensors divides by it, ModelOpt multiplies."""
    divides = tensors.codes == "weight_packed"
    whole = "weight_global_scale" if divides else "weight_scale_2"
    rows, octets = tensors.matrix_shape(tensors.codes, "U8")
    shape, names = (rows, octets * 2), tensors.names("weight_scale", whole)
    tensors.check_fit("weight_scale", shape, (rows, shape[1] // NVFP4_GROUP))
    tensors.matrix_shape("weight_scale", "F8_E4M3")
    tensors.check_fit(whole, shape, (), (1,))
    factor = float(to_float32(tensors.scales(whole)).reshape(()))
    if not (factor > 0 if divides else factor >= 0) or factor == inf:  # NaN neither
        raise tensors.not_a_scale(whole, factor)

    def part(rows: Span, groups: Span) -> tuple[Array, Array]:
        """Codes and scales of these groups of inputs."""
        scales = E4M3[tensors.read("weight_scale", "F8_E4M3")[slice(*rows), slice(*groups)]]
        octets = slice(groups.begin * NVFP4_GROUP // 2, groups.end * NVFP4_GROUP // 2)
        return tensors.read(tensors.codes, "U8")[slice(*rows), octets], scales * by

    layout, by = Layout("e2m1", NVFP4_GROUP), np.float32(1 / factor if divides else factor)

    def floats(rows: Span, columns: Span) -> Array:
        groups = _words(columns, NVFP4_GROUP)
        return nvfp4_to_floats(*part(rows, groups))[:, _within(columns, groups, NVFP4_GROUP)]

    def codes(rows: Span) -> StoredRows:
        octets, scales = part(rows, Span(0, shape[1] // NVFP4_GROUP))
        extent = (len(octets), shape[1])
        return StoredRows(tensors.name("weight"), layout, "nibbles", extent, octets, scales.astype(np.float16))

    return QuantizedMatrix(
        shape,
        names,
        "NVFP4" if shape[1] % 32 == 0 else FLOATS,
        floats,
        blocks=lambda: nvfp4_to_blocks(*part(Span(0, rows), Span(0, shape[1] // NVFP4_GROUP))),
        codes=StoredCodes(layout, codes),
    )


class Words(NamedTuple):
    """Where codes are stored."""

    name: str
    packing: Packing
    of: Callable[[Span], tuple[Array, int]]  # those that hold these rows, and which row among theirs is the first


@dataclass(frozen=True, slots=True)
class _Grouped:
    """Codes with a scale and a zero point for each group of inputs."""

    shape: tuple[int, int]
    bits: Bits
    words: Words
    codes: Callable[[Span, Span], Array]  # of these rows and columns, uint8
    scales: Callable[[], Array]  # [rows, groups]
    zeros: Callable[[], Array]  # [rows, groups] or [1, 1]
    group_of: Array | None = None  # [cols]: None if groups are runs of inputs
    inputs: Inputs | None = None  # see `Layout`

    def matrix(self, names: tuple[str, ...], groups: int) -> QuantizedMatrix:
        zeros = self.zeros()
        kind = block_type(self.bits, self.shape[1], groups, zeros, runs=self.group_of is None)
        rows, columns = Span(0, self.shape[0]), Span(0, self.shape[1])
        return QuantizedMatrix(
            self.shape,
            names,
            kind,
            floats=lambda rows, columns: self.decode(rows, columns).to_floats(),
            blocks=lambda: self.decode(rows, columns).to_blocks(kind),
            codes=self.stored_codes(zeros, groups),
        )

    def stored_codes(self, zeros: Array, groups: int) -> StoredCodes | None:
        """None: groups are of several sizes."""
        cols = self.shape[1]
        order = None if self.group_of is None else group_order(self.group_of, groups)
        if cols % groups or (self.group_of is not None and order is None):
            return None
        fixed = bool((zeros == 1 << (self.bits - 1)).all())
        layout = Layout(
            "u4" if self.bits == 4 else "s8",
            cols // groups if groups > 1 else 0,
            scale_type(self.scales()),
            None if fixed else "zeros" if self.bits == 4 else "offsets",
            self.inputs if fixed and groups == 1 else None,
            0 if order is None else hash(order.tobytes()),
        )

        def read(rows: Span) -> StoredRows:
            (name, packing, words_of), scales = self.words, as_scales(self.scales()[slice(*rows)])
            shifts = None if fixed else self.zeros()[slice(*rows)]
            if shifts is not None and self.bits == 8:
                shifts = (128 - shifts.astype(np.float32)) * to_float32(scales)
            words, first = words_of(rows)
            shape = (rows.end - rows.begin, cols)
            return StoredRows(name, layout, packing, shape, words, scales, shifts, order, first)

        return StoredCodes(layout, read)

    def decode(self, rows: Span, columns: Span) -> GroupedCodes:
        scales, zeros, group_of = to_float32(self.scales()[slice(*rows)]), self.zeros(), self.group_of
        zeros = zeros[slice(*rows)] if len(zeros) > 1 else zeros
        if columns != (0, self.shape[1]):
            size = -(-self.shape[1] // scales.shape[1])
            group_of = np.arange(*columns) // size if group_of is None else group_of[slice(*columns)]
        return GroupedCodes(self.codes(rows, columns), scales, zeros, group_of)


def _only(inputs: Inputs, quantization: Quantization) -> Inputs | None:
    """Inputs are rounded to the type of the weights, or not at all."""
    return inputs if quantization.inputs == inputs else None


def _words(span: Span, size: int) -> Span:
    """The words, of `size` elements each, that hold these elements."""
    return Span(span.begin // size, -(-span.end // size))


def _within(span: Span, words: Span, size: int) -> slice:
    """Where these elements are in what the words hold."""
    return slice(span.begin - words.begin * size, span.end - words.begin * size)


def _no_blocks() -> Array:
    raise AssertionError("FP8 has no blocks")
