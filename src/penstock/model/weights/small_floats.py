"""Floats of 8 and 4 bits: FP8 (e4m3) with scales by tensor, row or block, and NVFP4 (e2m1)."""

from __future__ import annotations

import numpy as np

from penstock.kernels.arrays import Array

NVFP4_GROUP = 16  # inputs with one scale
NVFP4_BLOCK_BYTES = 36  # of 32 inputs: two scales, then codes


def _e4m3_values() -> Array:
    """[256] float32: sign, 4 bits of exponent with bias 7, 3 bits of fraction; no infinities, two NaNs."""
    bits = np.arange(256)
    exponent, fraction = bits >> 3 & 15, bits & 7
    values = np.where(exponent > 0, (8 + fraction) * 2.0 ** (exponent - 10), fraction * 2.0**-9)
    values = np.where(bits & 127 == 127, np.nan, values)
    return np.where(bits & 128, -values, values).astype(np.float32)


E4M3 = _e4m3_values()
# Twice the values of e2m1, which are 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives: integers
_TWICE_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.int8)


def fp8_to_floats(codes: Array, scales: Array, block: tuple[int, int], first: tuple[int, int] = (0, 0)) -> Array:
    """[rows, cols] uint8 of a matrix, from its row and column `first` on, and the matrix's scales, one for each `block`
    of it -> float32"""
    rows, cols = codes.shape
    values: Array = E4M3[codes]
    if scales.size == 1:
        values *= scales.reshape(())
    else:
        factors = scales[np.arange(first[0], first[0] + rows) // block[0]]
        if scales.shape[1] > 1:
            factors = factors[:, np.arange(first[1], first[1] + cols) // block[1]]
        values *= factors
    return values


def nvfp4_to_blocks(octets: Array, scales: Array) -> Array:
    """[rows, cols / 2] uint8, the first of two inputs in the low half, and scales [rows, cols / 16] float32 -> [rows,
    bytes of a row] uint8, as `pack` reads them"""
    rows = len(octets)
    codes = _nvfp4_codes(octets).view(np.uint8) + np.uint8(128)
    halves = (scales * np.float32(0.5)).astype(np.float16).reshape(rows, -1, 2)
    return np.concatenate((halves.view(np.uint8), codes.reshape(rows, -1, 32)), axis=2).reshape(rows, -1)


def nvfp4_to_floats(octets: Array, scales: Array) -> Array:
    """As `nvfp4_to_blocks`, but [rows, cols] float32"""
    values: Array = _nvfp4_codes(octets) * np.repeat(scales * np.float32(0.5), NVFP4_GROUP, axis=1)
    return values


def _nvfp4_codes(octets: Array) -> Array:
    """[rows, cols] int8: twice each value"""
    codes = np.empty((len(octets), octets.shape[1] * 2), dtype=np.int8)
    codes[:, 0::2] = _TWICE_E2M1[octets & 15]
    codes[:, 1::2] = _TWICE_E2M1[octets >> 4]
    return codes
