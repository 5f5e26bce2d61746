"""One quantized linear layer of a Hugging Face checkpoint: a function per format, from its tensors to its matrix.

What decides the memory that the matrix will take is read at once: shapes, zero points and the order of groups. Codes
are read when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple

import numpy as np

from penstock.errors import ModelInvalid
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
)
from penstock.model.weights.safetensors import SafetensorsSource
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


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """The tensors of one layer, by the last part of their names."""

    source: SafetensorsSource
    layer: str
    codes: str  # which of them holds codes

    def has(self, what: str) -> bool:
        return self.name(what) in self.source.shapes

    def name(self, what: str) -> str:
        return f"{self.layer}.{what}"

    def shape(self, what: str) -> Shape:
        return self.source.shapes[self.name(what)]

    def matrix_shape(self, what: str) -> tuple[int, int]:
        shape = self.shape(what)
        if len(shape) != 2:
            raise ModelInvalid(
                f"tensor {self.name(what)} has shape {shape}: it must have two dimensions", param="model"
            )
        return shape[0], shape[1]

    def read(self, what: str) -> Array:
        return self.source.read_stored(self.name(what))

    def scales(self, what: str) -> Array:
        """In any floating-point type, over the mapped file"""
        return self.source.read(self.name(what), self.shape(what))

    def names(self, *required: str, optional: tuple[str, ...] = ()) -> tuple[str, ...]:
        for what in required:
            if not self.has(what):
                raise ModelInvalid(
                    f"tensor {self.name(what)} is missing: {self.name(self.codes)} cannot be read without it",
                    param="model",
                )
        return tuple(map(self.name, (self.codes, *required, *(what for what in optional if self.has(what)))))

    def wrong_scales(self, what: str, shape: Shape) -> ModelInvalid:
        return ModelInvalid(
            f"tensor {self.name(what)} has shape {self.shape(what)}, which does not fit weights of shape {shape}",
            param="model",
        )


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
    cols, words = tensors.matrix_shape("qweight")
    names = tensors.names("scales", "qzeros")

    def zeros() -> Array:
        return unpack_awq(tensors.read("qzeros"))

    def codes(rows: Span, columns: Span) -> Array:
        taken = _words(rows, 8)
        return unpack_awq(tensors.read("qweight")[slice(*columns), slice(*taken)])[_within(rows, taken, 8)]

    def stored(rows: Span) -> tuple[Array, int]:
        taken = _words(rows, 8)
        return tensors.read("qweight")[:, slice(*taken)], rows.begin - taken.begin * 8

    _check_groups(tensors, "scales", tensors.shape("scales")[::-1], (words * 8, cols))
    if tensors.shape("qzeros") != (tensors.shape("scales")[0], words):
        raise tensors.wrong_scales("qzeros", (words * 8, cols))
    words_of = Words(tensors.name("qweight"), "awq", stored)
    grouped = _Grouped((words * 8, cols), 4, words_of, codes, lambda: tensors.scales("scales").T, zeros)
    return grouped.matrix(names, tensors.shape("scales")[0])


def _gptq(tensors: LayerTensors, quantization: Quantization) -> QuantizedMatrix:
    bits: Bits = 8 if quantization.stored == "int8" else 4
    words, rows = tensors.matrix_shape("qweight")
    shape = (rows, words * 32 // bits)
    names = tensors.names("scales", "qzeros", optional=("g_idx",))
    _check_groups(tensors, "scales", tensors.shape("scales")[::-1], shape)
    group_of = _group_of(tensors, "g_idx", tensors.shape("scales")[0])

    def zeros() -> Array:
        return unpack(tensors.read("qzeros"), bits)[:, :rows].T + np.uint8(quantization.zero_offset)

    def codes(rows: Span, columns: Span) -> Array:
        taken = _words(columns, 32 // bits)
        unpacked = unpack_gptq(tensors.read("qweight")[slice(*taken), slice(*rows)], bits)
        return unpacked[:, _within(columns, taken, 32 // bits)]

    words_of = Words(tensors.name("qweight"), "columns", lambda rows: (tensors.read("qweight")[:, slice(*rows)], 0))
    grouped = _Grouped(shape, bits, words_of, codes, lambda: tensors.scales("scales").T, zeros, group_of)
    return grouped.matrix(names, tensors.shape("scales")[0])


def _packed(tensors: LayerTensors, _: Quantization) -> QuantizedMatrix:
    """compressed-tensors: 4 or 8 bits in words, zero points in words along the rows."""
    rows, words = tensors.matrix_shape("weight_packed")
    names = tensors.names("weight_scale", "weight_shape", optional=("weight_zero_point", "weight_g_idx"))
    cols = int(tensors.read("weight_shape").ravel()[-1])
    bits: Bits = 4 if words == -(-cols // 8) else 8
    if words != -(-cols * bits // 32):
        raise tensors.wrong_scales("weight_packed", (rows, cols))
    _check_groups(tensors, "weight_scale", tensors.shape("weight_scale"), (rows, cols))
    groups = tensors.shape("weight_scale")[1]
    group_of = _group_of(tensors, "weight_g_idx", groups)

    def zeros() -> Array:
        if not tensors.has("weight_zero_point"):
            return np.full((1, 1), 1 << (bits - 1), dtype=np.uint8)
        return unpack(tensors.read("weight_zero_point").T, bits)[:, :rows].T

    def codes(rows: Span, columns: Span) -> Array:
        taken = _words(columns, 32 // bits)
        unpacked = unpack(tensors.read("weight_packed")[slice(*rows), slice(*taken)], bits)
        return np.ascontiguousarray(unpacked[:, _within(columns, taken, 32 // bits)])

    packing: Packing = "nibbles" if bits == 4 else "flipped"
    what = "weight_packed"
    words_of = Words(tensors.name(what), packing, lambda rows: (tensors.read(what)[slice(*rows)], 0))
    grouped = _Grouped((rows, cols), bits, words_of, codes, lambda: tensors.scales("weight_scale"), zeros, group_of)
    return grouped.matrix(names, groups)


def _int8(tensors: LayerTensors, quantization: Quantization) -> QuantizedMatrix:
    """compressed-tensors: a scale for the matrix, for each row, or for groups of a row."""
    shape = tensors.matrix_shape("weight")
    names = tensors.names("weight_scale", optional=("weight_zero_point",))
    scales = prod(tensors.shape("weight_scale"))
    groups = max(scales // shape[0], 1)
    if scales != 1:
        _check_groups(tensors, "weight_scale", (scales // groups, groups), shape)

    def by_row(factors: Array) -> Array:
        return np.broadcast_to(factors.reshape(-1, groups), (shape[0], groups))

    def zeros() -> Array:
        if not tensors.has("weight_zero_point"):
            return np.full((1, 1), 128, dtype=np.uint8)
        return by_row(tensors.read("weight_zero_point").view(np.uint8) ^ 0x80)

    def codes(rows: Span, columns: Span) -> Array:
        return tensors.read("weight").view(np.uint8)[slice(*rows), slice(*columns)] ^ 0x80

    words_of = Words(
        tensors.name("weight"), "octets", lambda rows: (tensors.read("weight").view(np.uint8)[slice(*rows)], 0)
    )
    scales_of, inputs = (lambda: by_row(tensors.scales("weight_scale"))), _only("int8", quantization)
    return _Grouped(shape, 8, words_of, codes, scales_of, zeros, inputs=inputs).matrix(names, groups)


def _fp8(tensors: LayerTensors, quantization: Quantization) -> QuantizedMatrix:
    """A scale for the matrix, for each row, or for blocks of rows and columns."""
    what = "weight_scale_inv" if tensors.has("weight_scale_inv") else "weight_scale"
    rows, cols = shape = tensors.matrix_shape("weight")
    names, scales = tensors.names(what), tensors.shape(what)
    whole, by_row = prod(scales) == 1, scales in ((rows, 1), (rows,))
    block = shape if whole else (1, cols) if by_row else quantization.block or shape
    grid = (-(-rows // block[0]), -(-cols // block[1]))
    if not whole and not by_row and scales != grid:
        raise tensors.wrong_scales(what, shape)

    def floats(rows: Span, columns: Span) -> Array:
        codes = tensors.read("weight")[slice(*rows), slice(*columns)]
        return fp8_to_floats(codes, to_float32(tensors.scales(what).reshape(grid)), block, (rows.begin, columns.begin))

    def codes(rows: Span) -> StoredRows:
        factors = as_scales(tensors.scales(what).reshape(grid))[np.arange(*rows) // block[0]]
        taken = tensors.read("weight")[slice(*rows)]
        return StoredRows(tensors.name("weight"), layout, "octets", (len(taken), cols), taken, factors)

    group = block[1] if grid[1] > 1 else 0
    layout = Layout("e4m3", group, scale_type(tensors.scales(what)), inputs=_only("fp8", quantization))
    stored = None if cols % block[1] else StoredCodes(layout, codes)
    return QuantizedMatrix(shape, names, FLOATS, floats, _no_blocks, stored)


def _nvfp4(tensors: LayerTensors, _: Quantization) -> QuantizedMatrix:
    """A scale in FP8 for 16 inputs, and one for all: compressed-tensors divides by it, ModelOpt multiplies."""
    divides = tensors.codes == "weight_packed"
    whole = "weight_global_scale" if divides else "weight_scale_2"
    rows, octets = tensors.matrix_shape(tensors.codes)
    shape, names = (rows, octets * 2), tensors.names("weight_scale", whole)
    if tensors.shape("weight_scale") != (rows, shape[1] // NVFP4_GROUP):
        raise tensors.wrong_scales("weight_scale", shape)

    def part(rows: Span, groups: Span) -> tuple[Array, Array]:
        """Codes and scales of these groups of inputs."""
        factor = to_float32(tensors.scales(whole)).reshape(())
        scales = E4M3[tensors.read("weight_scale")[slice(*rows), slice(*groups)]]
        octets = slice(groups.begin * NVFP4_GROUP // 2, groups.end * NVFP4_GROUP // 2)
        return tensors.read(tensors.codes)[slice(*rows), octets], scales * (1 / factor if divides else factor)

    layout = Layout("e2m1", NVFP4_GROUP)

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


def _check_groups(tensors: LayerTensors, what: str, found: Shape, shape: tuple[int, int]) -> None:
    """Groups are equal parts of the columns."""
    if len(found) != 2 or found[0] != shape[0] or not 0 < found[1] <= shape[1] or shape[1] % found[1]:
        raise tensors.wrong_scales(what, shape)


def _group_of(tensors: LayerTensors, what: str, groups: int) -> Array | None:
    """[cols]: the group of each input; None if groups are runs of inputs."""
    if not tensors.has(what):
        return None
    found = tensors.read(what)
    if (found < 0).all():
        return None  # compressed-tensors: not in use
    if found.min() < 0 or found.max() >= groups:
        raise ModelInvalid(f"tensor {tensors.name(what)} names groups that are not there", param="model")
    in_order = np.array_equal(found, np.arange(len(found)) // -(-len(found) // groups))
    return None if in_order else found


def _no_blocks() -> Array:
    raise AssertionError("FP8 has no blocks")
