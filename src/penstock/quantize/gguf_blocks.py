"""Blocks of 32 numbers as GGUF stores them: the other way round of `model.weights.dequantize`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from penstock.kernels.arrays import Array

BLOCK = 32
# Of the scale that reaches the largest number: those that are tried, of 4 and 5 bits.
FACTORS = tuple(1 - step / 24 for step in range(-2, 7))


def encode(name: str, matrix: Array) -> Array:
    """[rows, cols] float32, cols a multiple of 32 -> [rows, bytes of a row] uint8 of the format `name`."""
    rows, cols = matrix.shape
    fields = ENCODERS[name](np.ascontiguousarray(matrix, dtype=np.float32).reshape(-1, BLOCK))
    octets = [np.ascontiguousarray(field).view(np.uint8).reshape(rows * cols // BLOCK, -1) for field in fields]
    return np.concatenate(octets, axis=1).reshape(rows, -1)


def _q8_0(blocks: Array) -> tuple[Array, ...]:
    scales = _half(abs(blocks).max(axis=1, keepdims=True) / 127)
    return scales, np.rint(blocks / _divisor(scales)).clip(-127, 127).astype(np.int8)


def _symmetric(blocks: Array, zero: int) -> tuple[Array, Array]:
    """scale * (code - zero): codes 0 .. 2 zero - 1, where the number of largest size gets code 0. Of several scales the
    one with the least squared error."""
    top = np.take_along_axis(blocks, abs(blocks).argmax(axis=1)[:, None], axis=1)
    best, codes, least = None, None, None
    for factor in FACTORS:
        scales = _half(top / -zero * factor)
        found = (np.rint(blocks / _divisor(scales)) + zero).clip(0, 2 * zero - 1)
        error = np.square((found - zero) * scales.astype(np.float32) - blocks).sum(axis=1, keepdims=True)
        if best is None or codes is None or least is None:
            best, codes, least = scales, found, error
            continue
        better = error < least
        best, codes, least = np.where(better, scales, best), np.where(better, found, codes), np.minimum(error, least)
    assert best is not None
    assert codes is not None
    return best, codes.astype(np.uint8)


def _offset(blocks: Array, most: int) -> tuple[Array, Array, Array]:
    """scale * code + least number"""
    low, high = blocks.min(axis=1, keepdims=True), blocks.max(axis=1, keepdims=True)
    scales, offsets = _half((high - low) / most), _half(low)
    codes = np.rint((blocks - offsets.astype(np.float32)) / _divisor(scales)).clip(0, most)
    return scales, offsets, codes.astype(np.uint8)


def _q4_0(blocks: Array) -> tuple[Array, ...]:
    scales, codes = _symmetric(blocks, 8)
    return scales, _nibbles(codes)


def _q4_1(blocks: Array) -> tuple[Array, ...]:
    scales, offsets, codes = _offset(blocks, 15)
    return scales, offsets, _nibbles(codes)


def _q5_0(blocks: Array) -> tuple[Array, ...]:
    scales, codes = _symmetric(blocks, 16)
    return scales, _fifth_bits(codes), _nibbles(codes & 15)


def _q5_1(blocks: Array) -> tuple[Array, ...]:
    scales, offsets, codes = _offset(blocks, 31)
    return scales, offsets, _fifth_bits(codes), _nibbles(codes & 15)


def _nibbles(codes: Array) -> Array:
    packed: Array = codes[:, :16] | codes[:, 16:] << 4
    return packed


def _fifth_bits(codes: Array) -> Array:
    return np.packbits(codes >> 4, axis=1, bitorder="little")


def _half(values: Array) -> Array:
    with np.errstate(over="ignore"):
        return values.clip(-65504, 65504).astype(np.float16)


def _divisor(scales: Array) -> Array:
    """Blocks of zeros have a scale of 0."""
    wide = scales.astype(np.float32)
    return np.where(wide == 0, np.float32(1), wide)


ENCODERS: dict[str, Callable[[Array], tuple[Array, ...]]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
}
