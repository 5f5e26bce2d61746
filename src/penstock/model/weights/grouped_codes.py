"""Codes of a quantized matrix with a scale for each group of inputs: unpacked from the words that checkpoints of AWQ,
GPTQ and compressed-tensors hold, and turned into floats or into blocks of a type that `pack` reads.

words ──unpack──► GroupedCodes ──to_floats──► float32
                               ──to_blocks──► Q4_0, Q4_1, Q8_0: the same codes, a scale for every 32 inputs
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from penstock.kernels.arrays import Array, to_float32

BLOCK = 32  # inputs of a block of these types
FLOATS = "F16"  # the type that matrices without a block type are packed in

# AWQ stores eight outputs in a word, in this order from the lowest bits on.
_AWQ_COLUMNS = np.argsort([0, 2, 4, 6, 1, 3, 5, 7])


class GroupedCodes(NamedTuple):
    codes: Array  # [rows, cols] uint8
    scales: Array  # [rows, groups] float32
    zeros: Array  # [rows, groups] or [1, 1], uint8: the code of weight 0
    group_of: Array | None = None  # [cols], where groups are not runs of inputs

    def to_floats(self) -> Array:
        """[rows, cols] float32"""
        values = self.codes.astype(np.float32)
        values -= self._by_column(self.zeros) if self.zeros.size > 1 else self.zeros
        values *= self._by_column(self.scales)
        return values

    def to_blocks(self, block_type: str) -> Array:
        """[rows, bytes of a row] uint8"""
        rows, cols = self.codes.shape
        codes = self.codes.reshape(rows, -1, BLOCK)
        repeat = cols // self.scales.shape[1] // BLOCK
        fields = [_halves(self.scales, repeat)]
        if block_type == "Q8_0":
            fields.append(codes ^ 0x80)
        else:
            if block_type == "Q4_1":
                fields.append(_halves(self.scales * -self.zeros.astype(np.float32), repeat))
            fields.append(codes[..., : BLOCK // 2] | codes[..., BLOCK // 2 :] << 4)
        return np.concatenate(fields, axis=2).reshape(rows, -1)

    def _by_column(self, factors: Array) -> Array:
        """[rows, groups] -> [rows, cols]"""
        if self.group_of is not None:
            return factors[:, self.group_of]
        return np.repeat(factors, self.codes.shape[1] // factors.shape[1], axis=1)


def block_type(bits: int, cols: int, groups: int, zeros: Array, *, runs: bool) -> str:
    """The type whose blocks hold such codes as they are; "F16" if there is none."""
    if not runs or cols % groups or cols // groups % BLOCK:
        return FLOATS
    middle = bool((zeros == 1 << (bits - 1)).all())
    if bits == 8:
        return "Q8_0" if middle else FLOATS
    return "Q4_0" if middle else "Q4_1"


def group_order(group_of: Array, groups: int) -> Array | None:
    """[cols] int64: the inputs in the order of their groups; None: those are of several sizes."""
    if len(set(np.bincount(group_of, minlength=groups).tolist())) > 1:
        return None
    return np.argsort(group_of, kind="stable")


def unpack(words: Array, bits: Literal[4, 8]) -> Array:
    """[..., n] int32 -> [..., n * 32 / bits] uint8, from the lowest bits on"""
    octets: Array = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return octets
    fields = np.empty((*octets.shape[:-1], octets.shape[-1] * 2), dtype=np.uint8)
    fields[..., 0::2] = octets & 15
    fields[..., 1::2] = octets >> 4
    return fields


def unpack_zeros(words: Array, bits: Literal[4, 8], offset: int) -> Array:
    """[n, words] int32, less `offset` in each code, which was subtracted from whole words, with a borrow from the next
    code where one was 0 -> [n, codes] uint8"""
    return unpack(words.view(np.uint32) + np.uint32(offset * ((1 << 32) // ((1 << bits) - 1))), bits)


def unpack_awq(words: Array) -> Array:
    """[n, rows / 8] int32 -> [rows, n] uint8"""
    fields = unpack(words, 4).reshape(len(words), -1, 8)[..., _AWQ_COLUMNS]
    return np.ascontiguousarray(fields.reshape(len(words), -1).T)


def unpack_gptq(words: Array, bits: Literal[4, 8]) -> Array:
    """[n * bits / 32, rows] int32 -> [rows, n] uint8"""
    return unpack(words.T, bits)


def _halves(factors: Array, repeat: int) -> Array:
    """[rows, groups] -> [rows, groups * repeat, 2] uint8: each as a float16"""
    with np.errstate(over="ignore"):  # infinity, which `pack.pack_blocks` rejects
        halves = np.repeat(to_float32(factors).astype(np.float16), repeat, axis=1)
    return halves[..., None].view(np.uint8)
