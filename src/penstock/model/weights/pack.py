"""Pack tensors of checkpoints: GGUF's quantized formats keep their codes, floats may be quantized to int8 or int4.

Every format becomes one of the few kinds of `kernels.cpu.packed`. Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and floats are exact. In
the K formats the scale of a sub-block is the product of two numbers; it is rounded to float16, which changes a weight
by at most 1 part in 2048.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from penstock.errors import ModelInvalid
from penstock.kernels.arrays import Array, to_float32
from penstock.kernels.cpu.arena import Arena
from penstock.kernels.cpu.packed import BLOCK, PANEL, Kind, Segment, allocate, fill, quantize
from penstock.model.weights.dequantize import fifth_bits, fifth_k_bits, half, k_scales, q6_k_codes
from penstock.model.weights.small_floats import NVFP4_BLOCK_BYTES

Quantization = Literal["int8", "int4"]

CHUNK = 1 << 20  # elements packed at a time, to bound temporary memory


class Codes(NamedTuple):
    """Rows of codes, as `kernels.cpu.packed.fill` takes them."""

    codes: Array
    scales: Array
    offsets: Array | None = None
    flip: int = 0


def kind_of(stored: str, quantize: Quantization | None) -> Kind:
    """The kind that a tensor of this type (`Source.stored_type`) is packed as."""
    if stored in FORMATS:
        return FORMATS[stored][0]
    if stored not in FLOAT_KINDS:
        raise ModelInvalid(f"weights of type {stored} are not supported; {', '.join(FLOAT_KINDS)} are", param="model")
    return QUANTIZED[quantize][0] if quantize else FLOAT_KINDS[stored]


def pack_blocks(stored: str, rows: Array, cols: int, arena: Arena, *, name: str = "") -> Segment:
    """`rows` is [rows, bytes of a row] uint8 of the GGUF format `stored`. `name`: of the tensor, for errors."""
    kind, decode = FORMATS[stored]
    segment = _pack_chunks(allocate(kind, len(rows), cols, arena), rows, cols, decode)
    for factors in (segment.scales, segment.offsets):
        if factors is not None and not _all_finite(factors):
            tensor = f"tensor {name}" if name else "a tensor"
            raise ModelInvalid(f"{tensor} of type {stored} has scales that float16 cannot hold", param="model")
    return segment


def pack_floats(weight: Array, stored: str, arena: Arena) -> Segment:
    """[rows, cols] in the type that the checkpoint has it in; float64 as float32."""
    segment = allocate(FLOAT_KINDS[stored], weight.shape[0], weight.shape[1], arena)
    for begin, chunk in _chunks(weight, weight.shape[1]):
        fill(segment, begin, chunk)
    return segment


def pack_quantized(weight: Array, to: Quantization, arena: Arena) -> Segment:
    """[rows, cols] of any float type, as `to` in blocks of 32."""
    kind, bits = QUANTIZED[to]
    cols = weight.shape[1]

    def quantize_padded(chunk: Array) -> Codes:
        padded = np.zeros((len(chunk), cols + -cols % BLOCK), dtype=np.float32)
        padded[:, :cols] = to_float32(chunk)
        return Codes(*quantize(padded.reshape(len(chunk), -1, BLOCK), bits))

    return _pack_chunks(allocate(kind, len(weight), cols, arena), weight, cols, quantize_padded)


def _pack_chunks(segment: Segment, rows: Array, cols: int, make: Callable[[Array], Codes]) -> Segment:
    for begin, chunk in _chunks(rows, cols):
        codes, scales, offsets, flip = make(chunk)
        fill(segment, begin, codes, scales, offsets, flip=flip)
    return segment


def _chunks(rows: Array, cols: int) -> list[tuple[int, Array]]:
    step = max(CHUNK // (cols * PANEL), 1) * PANEL
    return [(begin, rows[begin : begin + step]) for begin in range(0, len(rows), step)]


def _q4_0(rows: Array) -> Codes:
    blocks = rows.reshape(len(rows), -1, 18)
    return Codes(blocks[..., 2:], half(blocks, 0))


def _q4_1(rows: Array) -> Codes:
    blocks = rows.reshape(len(rows), -1, 20)
    return Codes(blocks[..., 4:], half(blocks, 0), half(blocks, 2))


def _q5_0(rows: Array) -> Codes:
    blocks = rows.reshape(len(rows), -1, 22)
    codes: Array = _split(blocks[..., 6:]) | fifth_bits(blocks[..., 2:6])
    codes += 128 - 16
    return Codes(codes, half(blocks, 0))


def _q5_1(rows: Array) -> Codes:
    blocks = rows.reshape(len(rows), -1, 24)
    return Codes(_split(blocks[..., 8:]) | fifth_bits(blocks[..., 4:8]), half(blocks, 0), half(blocks, 2))


def _q8_0(rows: Array) -> Codes:
    blocks = rows.reshape(len(rows), -1, 34)
    return Codes(blocks[..., 2:], half(blocks, 0), flip=128)


def _q4_k(rows: Array) -> Codes:
    blocks = rows.reshape(len(rows), -1, 144)
    # sub-block 2i in the low halves of 32 bytes, 2i + 1 in the high
    pairs = blocks[..., 16:].reshape(len(rows), -1, 4, 2, 16)
    first, second = pairs[..., 0, :], pairs[..., 1, :]
    codes = np.stack(((first & 15) | (second << 4), (first >> 4) | (second & 240)), axis=3)
    return Codes(codes.reshape(len(rows), -1, 16), *_k_factors(blocks))


def _q5_k(rows: Array) -> Codes:
    blocks = rows.reshape(len(rows), -1, 176)
    codes = _split(blocks[..., 48:].reshape(len(rows), -1, 4, 32)).reshape(len(rows), -1, 8, BLOCK)
    codes |= fifth_k_bits(blocks)
    return Codes(codes.reshape(len(rows), -1, BLOCK), *_k_factors(blocks))


def _q6_k(rows: Array) -> Codes:
    blocks = rows.reshape(len(rows), -1, 210)
    codes = q6_k_codes(blocks).reshape(len(rows), -1, BLOCK)
    codes += 128 - 32
    scales = blocks[..., 192:208].view(np.int8) * half(blocks, 208).astype(np.float32)[..., None]
    return Codes(codes, _to_float16(scales).reshape(len(rows), -1, 2))


def _nvfp4(rows: Array) -> Codes:
    """As `small_floats.nvfp4_to_blocks` makes them."""
    blocks = rows.reshape(len(rows), -1, NVFP4_BLOCK_BYTES)
    return Codes(blocks[..., 4:], np.ascontiguousarray(blocks[..., :4]).view(np.float16))


def _k_factors(blocks: Array) -> tuple[Array, Array]:
    """[rows, n, block bytes] -> scales and offsets [rows, 8 n] float16"""
    scales, minima = k_scales(blocks.reshape(-1, blocks.shape[-1]))
    count = len(blocks)
    return _to_float16(scales).reshape(count, -1), _to_float16(-minima).reshape(count, -1)


def _split(packed: Array) -> Array:
    """[..., n] -> [..., 2 n] uint8: all low halves, then all high ones"""
    return np.concatenate((packed & 15, packed >> 4), axis=-1)


def _all_finite(halves: Array) -> bool:
    """By their bits: numpy converts float16 one by one."""
    return bool((halves.view(np.uint16) & 0x7C00).max(initial=0) < 0x7C00)


def _to_float16(values: Array) -> Array:
    with np.errstate(over="ignore"):  # infinity, which `pack_blocks` rejects
        return values.astype(np.float16)


FLOAT_KINDS = {"F32": Kind.F32, "F64": Kind.F32, "F16": Kind.F16, "BF16": Kind.BF16}
QUANTIZED: dict[Quantization, tuple[Kind, Literal[4, 8]]] = {"int8": (Kind.U8, 8), "int4": (Kind.U4, 4)}
# GGUF format -> its kind, and how its blocks are decoded
GGUF_FORMATS: dict[str, tuple[Kind, Callable[[Array], Codes]]] = {
    "Q4_0": (Kind.U4, _q4_0),
    "Q4_1": (Kind.U4_OFFSET, _q4_1),
    "Q5_0": (Kind.U8, _q5_0),
    "Q5_1": (Kind.U8_OFFSET, _q5_1),
    "Q8_0": (Kind.U8, _q8_0),
    "Q4_K": (Kind.U4_OFFSET, _q4_k),
    "Q5_K": (Kind.U8_OFFSET, _q5_k),
    "Q6_K": (Kind.U8_HALVES, _q6_k),
}
FORMATS = GGUF_FORMATS | {"NVFP4": (Kind.U8_HALVES, _nvfp4)}  # the latter from `quantized_layers`
