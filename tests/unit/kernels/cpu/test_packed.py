"""The packed layout: what is filled in comes back, wherever it was put."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from helpers.packed_samples import random_matrix
from penstock.kernels.cpu.arena import ALIGNMENT, CHUNK, Arena
from penstock.kernels.cpu.packed import NIBBLES, Kind, PackedMatrix, allocate, fill, segment_bytes


def test_codes_of_one_row_are_where_native_code_looks() -> None:
    """Row 17, input 32 + 5, byte for byte as native/linear.h has it."""
    segment = allocate(Kind.U8, 20, 64, Arena())
    codes = np.zeros((20, 2, 32), dtype=np.uint8)
    codes[17, 1, 5] = 200
    fill(segment, 0, codes, np.ones((20, 2)))
    place = ((1 * 2 + 1) * 8 + 5 // 4) * 64 + 1 * 4 + 5 % 4  # panel 1, block 1, quad 1, row 1, input 1
    assert segment.codes.ravel().nonzero()[0].tolist() == [place]


def test_both_halves_of_a_byte() -> None:
    segment = allocate(Kind.U4, 1, 32, Arena())
    fill(segment, 0, np.arange(16, dtype=np.uint8).reshape(1, 1, 16) * 16 + 3, np.ones((1, 1)))
    expected = np.concatenate((np.full(16, 3.0), np.arange(16.0))) - 8
    assert np.array_equal(PackedMatrix([segment], 32).unpack(), expected[None])


@pytest.mark.parametrize(("kind", "zero"), [(Kind.U4, 0x88), (Kind.U4_OFFSET, 0), (Kind.U8, 0x80), (Kind.U8_OFFSET, 0)])
def test_codes_without_a_scale_are_those_of_weight_0(kind: Kind, zero: int) -> None:
    """Products with many tokens count them."""
    codes = np.full((1, 3, 16 if kind in NIBBLES else 32), 0x37, dtype=np.uint8)
    segment = allocate(kind, 1, 96, Arena())
    fill(segment, 0, codes, np.array([[1.0, 0.0, 1e-9]]), np.ones((1, 3)), flip=0x80)
    found = [set(block[:, 0].ravel().tolist()) for block in segment.codes[0]]
    assert found == [{0x37 ^ 0x80}, {zero}, {zero}]


@pytest.mark.parametrize("kind", Kind)
def test_filled_in_portions(kind: Kind) -> None:
    cols = 70
    whole = random_matrix((kind,), (50,), cols)
    weights = whole.unpack()
    assert weights.shape == (50, cols)
    if kind in (Kind.F32, Kind.F16):
        segment = allocate(kind, 50, cols, Arena())
        for begin in (0, 32, 16, 48):
            fill(segment, begin, weights[begin : begin + 16].astype(segment.codes.dtype))
        assert np.array_equal(PackedMatrix([segment], cols).unpack(), weights)
    assert whole.num_bytes == segment_bytes(kind, 50, cols)


@pytest.mark.parametrize("kind", [Kind.U4_OFFSET, Kind.U8_HALVES, Kind.F32])
def test_fields_of_larger_records_are_read_in_place(kind: Kind) -> None:
    """As GGUF has them: a block is scale, offset and codes one after the other, at odd addresses."""
    draw = np.random.default_rng(0)
    size, factors = (16, 1) if kind is Kind.U4_OFFSET else (32, 2)
    records = draw.integers(0, 120, (21, 3, 5 + size + 4), dtype=np.uint8)
    if kind is Kind.F32:
        values = records[:, 0, 1:33].view(np.float32)
        found, expected = allocate(kind, 21, 8, Arena()), allocate(kind, 21, 8, Arena())
        fill(found, 0, values)
        fill(expected, 0, values.copy())
    else:
        codes, scales = records[..., 5 : 5 + size], records[..., 1 : 1 + 2 * factors].view(np.float16)
        scales = scales if factors == 2 else scales[..., 0]
        found, expected = allocate(kind, 21, 96, Arena()), allocate(kind, 21, 96, Arena())
        fill(found, 0, codes, scales, scales, flip=0x80)
        fill(expected, 0, codes.copy() ^ 0x80, scales.copy(), scales.copy())
    assert found.codes.any()
    for part in ("codes", "scales", "offsets"):
        np.testing.assert_array_equal(getattr(found, part), getattr(expected, part))
    assert not found.codes[1, ..., 5:, :].any() if kind is not Kind.F32 else not found.codes[1, :, 5:].any()


def test_what_products_will_read() -> None:
    assert random_matrix((Kind.F16,), (3,), 8).reads_float
    assert not random_matrix((Kind.F16,), (3,), 8).reads_quantized
    mixed = random_matrix((Kind.F16, Kind.U4), (3, 5), 8)
    assert mixed.reads_float
    assert mixed.reads_quantized
    assert mixed.shape == (8, 8)


def test_arena_gives_out_aligned_memory_that_does_not_overlap() -> None:
    arena = Arena()
    arrays = [arena.empty(size, dtype=np.uint8) for size in (1, 100, CHUNK - 500, 3 * CHUNK // 2, 7)]
    spans = sorted((array.ctypes.data, array.ctypes.data + len(array)) for array in arrays)
    assert all(begin % ALIGNMENT == 0 for begin, _ in spans)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    arrays[2][-1] = 9  # the memory outlives the arena
    del arena
    assert arrays[2][-1] == 9
    assert not arena_matrix().unpack().any()


def arena_matrix() -> PackedMatrix:
    segment = allocate(Kind.F32, 4, 8, Arena())
    fill(segment, 0, np.zeros((4, 8)))
    return PackedMatrix([segment], 8)
