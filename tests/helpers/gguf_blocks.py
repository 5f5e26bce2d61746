"""GGUF's blocks read number by number, as llama.cpp's `ggml-quants.c` describes them, and random ones.

Written from that description and not from the code under test.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

K_FORMATS = ("Q4_K", "Q5_K", "Q6_K")


class Block(NamedTuple):
    """weight = scale * (code - the format's zero) + offset"""

    codes: list[int]  # of each element
    scales: list[float]  # of each group of elements
    offsets: list[float]  # likewise; empty: there are none


def _half(block: bytes, at: int) -> float:
    value: float = struct.unpack_from("<e", block, at)[0]
    return value


def _q4_0(block: bytes) -> Block:
    return Block(_nibbles(block[2:18]), [_half(block, 0)], [])


def _q4_1(block: bytes) -> Block:
    return Block(_nibbles(block[4:20]), [_half(block, 0)], [_half(block, 2)])


def _q5_0(block: bytes) -> Block:
    return Block(_with_fifth(_nibbles(block[6:22]), block[2:6]), [_half(block, 0)], [])


def _q5_1(block: bytes) -> Block:
    return Block(_with_fifth(_nibbles(block[8:24]), block[4:8]), [_half(block, 0)], [_half(block, 2)])


def _q8_0(block: bytes) -> Block:
    return Block([code - 256 if code > 127 else code for code in block[2:34]], [_half(block, 0)], [])


def _q4_k(block: bytes) -> Block:
    codes = [code for chunk in range(4) for code in _nibbles(block[16 + 32 * chunk : 48 + 32 * chunk])]
    return Block(codes, *_k_factors(block))


def _q5_k(block: bytes) -> Block:
    codes = [code for chunk in range(4) for code in _nibbles(block[48 + 32 * chunk : 80 + 32 * chunk])]
    for at, code in enumerate(codes):
        group, within = divmod(at, 32)
        codes[at] = code | (block[16 + within] >> group & 1) << 4
    return Block(codes, *_k_factors(block))


def _q6_k(block: bytes) -> Block:
    codes = [0] * 256
    for half in range(2):
        low, high = block[64 * half : 64 * half + 64], block[128 + 32 * half : 160 + 32 * half]
        for at in range(32):
            for quarter in range(4):
                nibble = low[at + 32 * (quarter % 2)] >> (4 if quarter >= 2 else 0) & 15
                codes[128 * half + 32 * quarter + at] = nibble | (high[at] >> 2 * quarter & 3) << 4
    scales = struct.unpack_from("<16b", block, 192)
    return Block(codes, [scale * _half(block, 208) for scale in scales], [])


def _nibbles(octets: bytes) -> list[int]:
    return [octet & 15 for octet in octets] + [octet >> 4 for octet in octets]


def _with_fifth(codes: list[int], bits: bytes) -> list[int]:
    word = int.from_bytes(bits, "little")
    return [code | (word >> at & 1) << 4 for at, code in enumerate(codes)]


def _k_factors(block: bytes) -> tuple[list[float], list[float]]:
    packed = block[4:16]
    scales, minima = [], []
    for group in range(8):
        if group < 4:
            scale, least = packed[group] & 63, packed[group + 4] & 63
        else:
            scale = packed[group + 4] & 15 | packed[group - 4] >> 6 << 4
            least = packed[group + 4] >> 4 | packed[group] >> 6 << 4
        scales.append(scale * _half(block, 0))
        minima.append(-least * _half(block, 2))
    return scales, minima


BLOCKS = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}


def random_rows(matrix: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """[rows, bytes of a row] uint8: random codes and scales, so that weights are about as large as the matrix's."""
    elements, size = GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(matrix.size).integers(0, 256, (matrix.size // elements, size), dtype=np.uint8)
    spread = float(matrix.std())
    if kind.name == "Q6_K":
        factors = {208: spread / (64 * 18)}
    else:
        step = spread / (32 * (4.6 if kind.name == "Q4_K" else 9.2))
        factors = {0: step, 2: step * (7.5 if kind.name == "Q4_K" else 15.5)}
    for at, factor in factors.items():
        blocks[:, at : at + 2] = np.frombuffer(np.float16(factor).tobytes(), dtype=np.uint8)
    return blocks.reshape(len(matrix), -1)
