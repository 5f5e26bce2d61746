"""Dequantize GGUF's block formats to float32; its 16-bit formats are kept.

A tensor is a row of blocks of 32 or 256 elements, each with its own scale. Here a field is sliced out of all blocks at
once, so the work is a handful of passes over the tensor. `blocks` is always [n, block_bytes] uint8, the result
[n, block_elements]. In the formats named Qx_0 an element is scale * q, in Qx_1 scale * q + minimum; the K
formats have sub-blocks of 16 or 32 elements whose own scales are small integers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def dequantize(kind: str, blocks: Tensor) -> Tensor:
    """`kind` is the name of a `store.gguf.TensorType`."""
    return _KINDS[kind](blocks)


def _f32(blocks: Tensor) -> Tensor:
    return blocks.view(torch.float32)


def _f16(blocks: Tensor) -> Tensor:
    return blocks.view(torch.float16)


def _bf16(blocks: Tensor) -> Tensor:
    return blocks.view(torch.bfloat16)


def _q4_0(blocks: Tensor) -> Tensor:
    return _nibbles(blocks[:, 2:18]).sub_(8).mul_(_half(blocks, 0))


def _q4_1(blocks: Tensor) -> Tensor:
    return _nibbles(blocks[:, 4:20]).mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q5_0(blocks: Tensor) -> Tensor:
    return _nibbles(blocks[:, 6:22]).add_(fifth_bits(blocks[:, 2:6])).sub_(16).mul_(_half(blocks, 0))


def _q5_1(blocks: Tensor) -> Tensor:
    q = _nibbles(blocks[:, 8:24]).add_(fifth_bits(blocks[:, 4:8]))
    return q.mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].view(torch.int8) * _half(blocks, 0)


def _q4_k(blocks: Tensor) -> Tensor:
    q = _nibbles(blocks[:, 16:].reshape(-1, 32)).view(-1, 8, 32)
    return _scaled_k(q, blocks)


def _q5_k(blocks: Tensor) -> Tensor:
    q = _nibbles(blocks[:, 48:].reshape(-1, 32)).view(-1, 8, 32)
    shifts = torch.arange(8, dtype=torch.uint8).view(8, 1)  # sub-block i has its fifth bits in bit i of 32 bytes
    q += blocks[:, None, 16:48].bitwise_right_shift(shifts).bitwise_and_(1) * 16
    return _scaled_k(q, blocks)


def _q6_k(blocks: Tensor) -> Tensor:
    """Sub-blocks of 16, each with a scale of eight bits."""
    q = q6_k_codes(blocks).view(-1, 16, 16).float().sub_(32)
    scales = blocks[:, 192:208].view(torch.int8) * _half(blocks, 208)
    return q.mul_(scales[..., None]).view(-1, 256)


def q6_k_codes(blocks: Tensor) -> Tensor:
    """[..., 210] -> [..., 256] uint8. Halves of 128 elements: 64 bytes of low nibbles, then 32 of upper bit pairs."""
    low = blocks[..., :128].reshape(*blocks.shape[:-1], 2, 1, 64)
    low = torch.cat((low & 15, low >> 4), dim=-2)  # [..., half, nibble, 64]
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8).view(4, 1)
    high = blocks[..., 128:192].reshape(*blocks.shape[:-1], 2, 1, 32)
    high = high.bitwise_right_shift(shifts).bitwise_and_(3) << 4
    return low.flatten(-3) | high.flatten(-3)


def half(blocks: Tensor, at: int) -> Tensor:
    """The float16 field at byte `at`: [..., block bytes] -> [...]"""
    return blocks[..., at : at + 2].contiguous().view(torch.float16).squeeze(-1)


def _half(blocks: Tensor, at: int) -> Tensor:
    """That field in float32, as a column."""
    return half(blocks, at).float()[:, None]


def _nibbles(packed: Tensor) -> Tensor:
    """[n, k] bytes -> [n, 2 * k]: all low halves, then all high halves."""
    count, width = packed.shape
    q = torch.empty(count, 2 * width)
    q[:, :width] = packed & 15
    q[:, width:] = packed >> 4
    return q


def fifth_bits(words: Tensor) -> Tensor:
    """[..., 4] bytes -> [..., 32]: 16 where the bit is set."""
    shifts = torch.arange(8, dtype=torch.uint8)
    bits = words[..., None].bitwise_right_shift(shifts).bitwise_and_(1) << 4
    return bits.flatten(-2)


def _scaled_k(q: Tensor, blocks: Tensor) -> Tensor:
    scales, minima = k_scales(blocks)
    return q.mul_(scales[..., None]).sub_(minima[..., None]).view(-1, 256)


def k_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """[n, 8] each: eight sub-blocks of 32, each with a scale and a minimum of six bits, packed into 12 bytes.

    Bytes 0-3 hold the scales 0-3, bytes 4-7 the minima 0-3, in their low six bits; scales and minima 4-7 have their low
    four bits in bytes 8-11 and their high two bits in the high two bits of the former.
    """
    first, second, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat((first & 63, (rest & 15) | (first >> 6) << 4), dim=1) * _half(blocks, 0)
    minima = torch.cat((second & 63, (rest >> 4) | (second >> 6) << 4), dim=1) * _half(blocks, 2)
    return scales, minima


_KINDS: dict[str, Callable[[Tensor], Tensor]] = {
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
