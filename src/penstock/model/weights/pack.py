"""Pack tensors of checkpoints: GGUF's quantized formats keep their codes, floats may be quantized to int8 or int4.

Every format becomes one of the few kinds of `kernels.cpu.packed`. Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and floats are exact. In
the K formats the scale of a sub-block is the product of two numbers; it is rounded to float16, which changes a weight
by at most 1 part in 2048.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from penstock.errors import ModelInvalid
from penstock.kernels.cpu.arena import Arena
from penstock.kernels.cpu.packed import BLOCK, FLOATS, PANEL, Kind, Segment, allocate, fill
from penstock.model.weights.dequantize import fifth_bits, half, k_scales, q6_k_codes

Quantization = Literal["int8", "int4"]

CHUNK = 1 << 20  # elements packed at a time, to bound temporary memory
# Scales that int4 tries per block, as shares of the one that just reaches the largest weight
INT4_SHARES = (1.0, 0.9375, 0.875, 0.8125)


class Codes(NamedTuple):
    """Rows of codes, as `kernels.cpu.packed.fill` takes them."""

    codes: Tensor
    scales: Tensor
    offsets: Tensor | None = None


def kind_of(stored: str, quantize: Quantization | None) -> Kind:
    """The kind that a tensor of this type (`Source.stored_type`) is packed as."""
    if stored in FORMATS:
        return FORMATS[stored][0]
    if stored not in FLOAT_KINDS:
        raise ModelInvalid(f"weights of type {stored} are not supported; {', '.join(FLOAT_KINDS)} are", param="model")
    return QUANTIZED[quantize][0] if quantize else FLOAT_KINDS[stored]


def pack_blocks(name: str, rows: Tensor, cols: int, arena: Arena) -> Segment:
    """`rows` is [rows, bytes of a row] uint8 of the GGUF format `name`."""
    kind, decode = FORMATS[name]

    def decode_checked(chunk: Tensor) -> Codes:
        codes = decode(chunk)
        if not all(factors is None or factors.isfinite().all() for factors in codes[1:]):
            raise ModelInvalid(f"a tensor of type {name} has scales that float16 cannot hold", param="model")
        return codes

    return _pack_chunks(allocate(kind, len(rows), cols, arena), rows, cols, decode_checked)


def pack_floats(weight: Tensor, arena: Arena) -> Segment:
    """[rows, cols] in its own type; float64 as float32."""
    segment = allocate(FLOATS.get(weight.dtype, Kind.F32), weight.shape[0], weight.shape[1], arena)
    for begin, chunk in _chunks(weight, weight.shape[1]):
        fill(segment, begin, chunk)
    return segment


def pack_quantized(weight: Tensor, to: Quantization, arena: Arena) -> Segment:
    """[rows, cols] of any float type, as `to` in blocks of 32."""
    kind, quantize = QUANTIZED[to]
    cols = weight.shape[1]

    def quantize_padded(chunk: Tensor) -> Codes:
        padded = torch.nn.functional.pad(chunk.float(), (0, -cols % BLOCK))
        return quantize(padded.view(len(chunk), -1, BLOCK))

    return _pack_chunks(allocate(kind, len(weight), cols, arena), weight, cols, quantize_padded)


def _pack_chunks(segment: Segment, rows: Tensor, cols: int, make: Callable[[Tensor], Codes]) -> Segment:
    for begin, chunk in _chunks(rows, cols):
        fill(segment, begin, *make(chunk))
    return segment


def _chunks(rows: Tensor, cols: int) -> list[tuple[int, Tensor]]:
    step = max(CHUNK // (cols * PANEL), 1) * PANEL
    return [(begin, rows[begin : begin + step]) for begin in range(0, len(rows), step)]


def _q4_0(rows: Tensor) -> Codes:
    blocks = rows.view(len(rows), -1, 18)
    return Codes(blocks[..., 2:], half(blocks, 0))


def _q4_1(rows: Tensor) -> Codes:
    blocks = rows.view(len(rows), -1, 20)
    return Codes(blocks[..., 4:], half(blocks, 0), half(blocks, 2))


def _q5_0(rows: Tensor) -> Codes:
    blocks = rows.view(len(rows), -1, 22)
    codes = _split(blocks[..., 6:]) | fifth_bits(blocks[..., 2:6])
    return Codes(codes.add_(128 - 16), half(blocks, 0))


def _q5_1(rows: Tensor) -> Codes:
    blocks = rows.view(len(rows), -1, 24)
    return Codes(_split(blocks[..., 8:]) | fifth_bits(blocks[..., 4:8]), half(blocks, 0), half(blocks, 2))


def _q8_0(rows: Tensor) -> Codes:
    blocks = rows.view(len(rows), -1, 34)
    return Codes(blocks[..., 2:] ^ 128, half(blocks, 0))


def _q4_k(rows: Tensor) -> Codes:
    blocks = rows.view(len(rows), -1, 144)
    pairs = blocks[..., 16:].reshape(
        len(rows), -1, 4, 2, 16
    )  # sub-block 2i in the low halves of 32 bytes, 2i + 1 in the high
    first, second = pairs.unbind(3)
    codes = torch.stack(((first & 15) | (second << 4), (first >> 4) | (second & 240)), dim=3)
    return Codes(codes.flatten(1, 3), *_k_factors(blocks))


def _q5_k(rows: Tensor) -> Codes:
    blocks = rows.view(len(rows), -1, 176)
    low = _split(blocks[..., 48:].reshape(len(rows), -1, 4, 32)).view(len(rows), -1, 8, 32)
    shifts = torch.arange(8, dtype=torch.uint8).view(8, 1)  # sub-block i has its fifth bits in bit i of 32 bytes
    high = blocks[..., None, 16:48].bitwise_right_shift(shifts).bitwise_and_(1) << 4
    return Codes((low | high).flatten(1, 2), *_k_factors(blocks))


def _q6_k(rows: Tensor) -> Codes:
    blocks = rows.view(len(rows), -1, 210)
    codes = q6_k_codes(blocks).view(len(rows), -1, BLOCK).add_(128 - 32)
    scales = blocks[..., 192:208].contiguous().view(torch.int8) * half(blocks, 208).float()[..., None]
    return Codes(codes, scales.half().view(len(rows), -1, 2))


def _k_factors(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """[rows, n, block bytes] -> scales and offsets [rows, 8 n] float16"""
    scales, minima = k_scales(blocks.flatten(0, 1))
    count = len(blocks)
    return scales.half().view(count, -1), minima.neg_().half().view(count, -1)


def _split(packed: Tensor) -> Tensor:
    """[..., n] -> [..., 2 n] uint8: all low halves, then all high ones"""
    return torch.cat((packed & 15, packed >> 4), dim=-1)


def _int8(blocks: Tensor) -> Codes:
    scales = (blocks.abs().amax(2) / 127).half()
    codes = (blocks / _divisors(scales)).round_().clamp_(-127, 127).add_(128)
    return Codes(codes.to(torch.uint8), scales)


def _int4(blocks: Tensor) -> Codes:
    """Codes are -8 to 7: the largest weight of either sign gets code -8. A smaller scale, which clips it, may fit the
    others better: of a few, take the codes with the least squared error, and then the scale that fits them best."""
    lowest, highest = blocks.aminmax(dim=2)
    extreme = torch.where(highest > -lowest, highest, lowest) / -8
    best = torch.full_like(extreme, torch.inf)
    codes = torch.zeros_like(blocks)
    for share in INT4_SHARES:
        scale = extreme * share
        rounded = (blocks / _divisors(scale)).round_().clamp_(-8, 7)
        error = (rounded * scale[..., None]).sub_(blocks).square_().sum(2)
        better = error < best
        best = torch.where(better, error, best)
        codes = torch.where(better[..., None], rounded, codes)
    scales = ((blocks * codes).sum(2) / codes.square().sum(2).clamp_(min=1)).half()
    low, high = codes.add_(8).to(torch.uint8).chunk(2, dim=2)
    return Codes(low | (high << 4), scales)


def _divisors(scales: Tensor) -> Tensor:
    """The scales, with 1 instead of 0 for blocks of zeros."""
    return torch.where(scales == 0, 1.0, scales.float())[..., None]


FLOAT_KINDS = {"F32": Kind.F32, "F64": Kind.F32, "F16": Kind.F16, "BF16": Kind.BF16}
QUANTIZED: dict[Quantization, tuple[Kind, Callable[[Tensor], Codes]]] = {
    "int8": (Kind.U8, _int8),
    "int4": (Kind.U4, _int4),
}
# GGUF format -> its kind, and how its blocks are decoded
FORMATS: dict[str, tuple[Kind, Callable[[Tensor], Codes]]] = {
    "Q4_0": (Kind.U4, _q4_0),
    "Q4_1": (Kind.U4_OFFSET, _q4_1),
    "Q5_0": (Kind.U8, _q5_0),
    "Q5_1": (Kind.U8_OFFSET, _q5_1),
    "Q8_0": (Kind.U8, _q8_0),
    "Q4_K": (Kind.U4_OFFSET, _q4_k),
    "Q5_K": (Kind.U8_OFFSET, _q5_k),
    "Q6_K": (Kind.U8_HALVES, _q6_k),
}
