"""Dequantize GGUF's block formats to float32; its 16-bit formats are kept.

A tensor is a row of blocks of 32 or 256 elements, each with its own scale. Here a field is sliced out of all blocks at
once, so the work is a handful of passes over the tensor. `blocks` is always [n, block_bytes] uint8, the result
[n, block_elements]. In the formats named Qx_0 an element is scale * q, in Qx_1 scale * q + minimum; the K
formats have sub-blocks of 16 or 32 elements whose own scales are small integers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from penstock.kernels.arrays import BFLOAT16, Array


def dequantize(kind: str, blocks: Array) -> Array:
    """`kind` is the name of a `store.gguf.TensorType`."""
    return _KINDS[kind](blocks)


def _f32(blocks: Array) -> Array:
    return blocks.view(np.float32)


def _f16(blocks: Array) -> Array:
    return blocks.view(np.float16)


def _bf16(blocks: Array) -> Array:
    return blocks.view(BFLOAT16)


def _q4_0(blocks: Array) -> Array:
    q = _nibbles(blocks[:, 2:18])
    q -= 8
    q *= _half(blocks, 0)
    return q


def _q4_1(blocks: Array) -> Array:
    q = _nibbles(blocks[:, 4:20])
    q *= _half(blocks, 0)
    q += _half(blocks, 2)
    return q


def _q5_0(blocks: Array) -> Array:
    q = _nibbles(blocks[:, 6:22])
    q += fifth_bits(blocks[:, 2:6])
    q -= 16
    q *= _half(blocks, 0)
    return q


def _q5_1(blocks: Array) -> Array:
    q = _nibbles(blocks[:, 8:24])
    q += fifth_bits(blocks[:, 4:8])
    q *= _half(blocks, 0)
    q += _half(blocks, 2)
    return q


def _q8_0(blocks: Array) -> Array:
    return blocks[:, 2:].view(np.int8) * _half(blocks, 0)


def _q4_k(blocks: Array) -> Array:
    q = _nibbles(blocks[:, 16:].reshape(-1, 32)).reshape(-1, 8, 32)
    return _scaled_k(q, blocks)


def _q5_k(blocks: Array) -> Array:
    q = _nibbles(blocks[:, 48:].reshape(-1, 32)).reshape(-1, 8, 32)
    q += fifth_k_bits(blocks)
    return _scaled_k(q, blocks)


def _q6_k(blocks: Array) -> Array:
    """Sub-blocks of 16, each with a scale of eight bits."""
    q = q6_k_codes(blocks).reshape(-1, 16, 16).astype(np.float32)
    q -= 32
    scales = blocks[:, 192:208].view(np.int8) * _half(blocks, 208)
    q *= scales[..., None]
    return q.reshape(-1, 256)


def q6_k_codes(blocks: Array) -> Array:
    """[..., 210] -> [..., 256] uint8. Halves of 128 elements: 64 bytes of low nibbles, then 32 of upper bit pairs."""
    outer = blocks.shape[:-1]
    packed = blocks[..., :128].reshape(*outer, 2, 1, 64)
    low = np.concatenate((packed & 15, packed >> 4), axis=-2)  # [..., half, nibble, 64]
    shifts = np.arange(0, 8, 2, dtype=np.uint8).reshape(4, 1)
    high = blocks[..., 128:192].reshape(*outer, 2, 1, 32) >> shifts
    high &= 3
    high <<= 4
    codes: Array = low.reshape(*outer, 256) | high.reshape(*outer, 256)
    return codes


def half(blocks: Array, at: int) -> Array:
    """The float16 field at byte `at`: [..., block bytes] -> [...], over the same memory."""
    return blocks[..., at : at + 2].view(np.float16)[..., 0]


def _half(blocks: Array, at: int) -> Array:
    """That field in float32, as a column."""
    return half(blocks, at).astype(np.float32)[:, None]


def _nibbles(packed: Array) -> Array:
    """[n, k] bytes -> [n, 2 * k] float32: all low halves, then all high halves."""
    count, width = packed.shape
    q = np.empty((count, 2 * width), dtype=np.float32)
    q[:, :width] = packed & 15
    q[:, width:] = packed >> 4
    return q


def fifth_bits(words: Array) -> Array:
    """[..., 4] bytes -> [..., 32]: 16 where the bit is set."""
    bits = words[..., None] >> np.arange(8, dtype=np.uint8)
    bits &= 1
    bits <<= 4
    return bits.reshape(*words.shape[:-1], 32)


def fifth_k_bits(blocks: Array) -> Array:
    """[..., block bytes] of Q5_K -> [..., 8, 32]: 16 where the bit is set. Sub-block i has its bits in bit i of 32
    bytes."""
    bits = blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8).reshape(8, 1)
    bits &= 1
    bits <<= 4
    return bits


def _scaled_k(q: Array, blocks: Array) -> Array:
    scales, minima = k_scales(blocks)
    q *= scales[..., None]
    q -= minima[..., None]
    return q.reshape(-1, 256)


def k_scales(blocks: Array) -> tuple[Array, Array]:
    """[n, 8] float32 each: eight sub-blocks of 32, each with a scale and a minimum of six bits, packed into 12 bytes.

    Bytes 0-3 hold the scales 0-3, bytes 4-7 the minima 0-3, in their low six bits; scales and minima 4-7 have their low
    four bits in bytes 8-11 and their high two bits in the high two bits of the former.
    """
    first, second, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate((first & 63, (rest & 15) | (first >> 6) << 4), axis=1) * _half(blocks, 0)
    minima = np.concatenate((second & 63, (rest >> 4) | (second >> 6) << 4), axis=1) * _half(blocks, 2)
    return scales, minima


_KINDS: dict[str, Callable[[Array], Array]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
