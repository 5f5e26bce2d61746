"""int4 pages against a reference of their own: codes read one by one, Hadamard matrices made by Sylvester's rule.

What the kernels have stored is unpacked here and handed to the plain-torch attention, so the result must be the same to
rounding; and what is stored must be the nearest that four bits allow.
"""

from __future__ import annotations

from ctypes import CDLL

import numpy as np
import pytest
import torch

from helpers.native_operations import SHAPES, Attention, walk
from helpers.native_paged_model import needs_library
from penstock.kernels.arrays import Array
from penstock.kernels.cpu.program import Pool
from penstock.kernels.interface import Pages, as_array

pytestmark = needs_library
TYPES = ["int4", "int4,float16", "float16,int4", "int8,int4", "int4,int8"]
GROUP = 32
LEVELS = np.array([-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127]) / 128.0


@pytest.fixture(scope="module")
def pool() -> Pool:
    return Pool(2)


def hadamard(dim: int) -> Array:
    """[dim, dim]: blocks of the largest power of two that divides dim."""
    size = next(size for size in (256, 128, 64, 32, 16, 8, 4, 2, 1) if dim % size == 0)
    block = np.ones((1, 1))
    while len(block) < size:
        block = np.block([[block, block], [block, -block]])
    return np.kron(np.eye(dim // size), block / np.sqrt(size))


def spread(scales: Array, dim: int) -> Array:
    """[..., groups] -> [..., dim]"""
    return np.repeat(scales.astype(np.float64), GROUP, axis=-1)[..., :dim]


def int4_keys(pages: Pages) -> tuple[Array, Array]:
    """[blocks, block_size, heads, dim] as stored, and the scale of each number."""
    octets = as_array(pages.keys).transpose(0, 3, 1, 2)  # [blocks, block_size, heads, dim / 2]
    codes = np.stack((octets & 15, octets >> 4), axis=-1).reshape(*octets.shape[:3], -1)
    assert pages.key_scales is not None
    scales = spread(as_array(pages.key_scales).transpose(0, 3, 1, 2), codes.shape[-1])
    return LEVELS[codes] * scales, scales


def int4_values(pages: Pages) -> tuple[Array, Array]:
    octets = as_array(pages.values).transpose(0, 2, 1, 3)
    dim = 2 * octets.shape[3]
    codes = np.empty((*octets.shape[:3], dim), dtype=np.uint8)
    for begin in range(0, dim, GROUP):
        end, half = min(begin + GROUP, dim), (min(begin + GROUP, dim) - begin) // 2
        part = octets[..., begin // 2 : begin // 2 + half]
        codes[..., begin : begin + half], codes[..., begin + half : end] = part & 15, part >> 4
    assert pages.value_scales is not None
    scales = spread(as_array(pages.value_scales).transpose(0, 2, 1, 3), dim)
    return LEVELS[codes] * scales, scales


def floats(pages: Pages, part: str) -> Array:
    """[blocks, block_size, heads, dim] of float16 and int8 pages."""
    keys = part == "keys"
    numbers = as_array(pages.keys).transpose(0, 3, 1, 2) if keys else as_array(pages.values).transpose(0, 2, 1, 3)
    scales = pages.key_scales if keys else pages.value_scales
    if scales is None:
        return numbers.astype(np.float64)
    return numbers * as_array(scales).transpose(0, 2, 1)[..., None].astype(np.float64)


class Unpacked(Attention):
    """The reference reads what the native kernels have stored."""

    def stored(self, pages: Pages) -> None:
        native = self.paged.pages[0]
        for part, unpack in (("keys", int4_keys), ("values", int4_values)):
            exact = getattr(pages, part)
            if as_array(getattr(native, part)).dtype != np.uint8:
                exact.copy_(torch.from_numpy(floats(native, part)))
                continue
            numbers, scales = unpack(native)
            matrix = hadamard(numbers.shape[-1])
            written = ~exact.isnan().numpy().any(axis=-1) & ~np.isnan(numbers).any(axis=-1)
            turned = exact.numpy()[written].astype(np.float64) @ matrix
            self.check(turned, numbers[written], scales[written])
            exact.copy_(torch.from_numpy(numbers @ matrix))

    @staticmethod
    def check(turned: Array, found: Array, scales: Array) -> None:
        """The nearest of sixteen levels for the scale, and a scale that loses less than the one that reaches the
        largest number; both to rounding."""
        assert len(turned)
        nearest = abs(turned[..., None] - LEVELS * scales[..., None]).min(axis=-1)
        assert (abs(turned - found) <= nearest + 1e-5 * scales + 1e-9).all()
        reaching = np.empty_like(scales)
        for begin in range(0, turned.shape[-1], GROUP):
            part = slice(begin, begin + GROUP)
            reaching[..., part] = abs(turned[..., part]).max(axis=-1, keepdims=True) * 128 / 127
        without_refinement = abs(turned[..., None] - LEVELS * reaching[..., None]).min(axis=-1)
        assert np.square(turned - found).sum() < np.square(without_refinement).sum()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_over_int4(native: CDLL, pool: Pool, shape: dict[str, int], dtype: str) -> None:
    attention = Unpacked(pool, dtype=dtype, **shape)  # type: ignore[arg-type]
    for ours, theirs in walk(attention):
        assert ours.isfinite().all()
        assert (ours - theirs).abs().max() < 3e-5 * theirs.abs().max()


def test_numbers_that_have_no_scale(native: CDLL, pool: Pool) -> None:
    """Zeros, and numbers whose scale float16 cannot hold: no NaN, nothing beyond the largest."""
    for size, largest in ((0.0, 0.0), (1e-12, 1e-6), (1e7, 65504 * 4)):
        attention = Attention(
            pool, heads=2, kv_heads=1, head_dim=16, block_size=16, dtype="int4", spread=size, scale=1e-16
        )
        ours, _ = attention.step(s0=20)
        assert ours.isfinite().all()
        assert ours.abs().max() <= largest
