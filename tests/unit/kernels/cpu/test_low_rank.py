"""Low-rank deltas by the native kernels of every instruction set, against numpy: ranks, widths and mixtures, and the
same to the last bit however many threads there are and however the work is divided among them."""

from __future__ import annotations

from array import array
from ctypes import CDLL

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.native_operations import OneOperation, operands, packed, spec_of
from helpers.native_paged_model import NativePagedModel, needs_library
from penstock.flow import Row
from penstock.kernels.arrays import Array
from penstock.kernels.cpu.low_rank import PackedAdapter
from penstock.kernels.cpu.program import Pool
from penstock.kernels.interface import Linear, Operations
from penstock.kernels.low_rank import EMBEDDING, HEAD, DeltaMatrices, LowRank

pytestmark = needs_library
TOKENS = 13
PLACE = LowRank(0, "qkv")


def part(
    place: int, offset: int, shape: tuple[int, int, int], *, scale: float = 0.5, size: float = 1.0
) -> DeltaMatrices:
    """Of shape outputs, rank, inputs; float16, so that nothing is rounded, unless the size is too large for that."""
    outputs, rank, inputs = shape
    a, b = operands(rank, inputs, 7 + place).half().float(), operands(outputs, rank, 17 + place).half().float() * size
    return DeltaMatrices(PLACE, place, offset, a.numpy(), b.numpy(), scale)


def rounded_to_codes(matrix: Array) -> Array:
    """What 8 bits with a scale for each row leave of it; the scales are halves, times one number for all."""
    sizes = abs(matrix).max(axis=1, keepdims=True)
    most = sizes.max() or 1.0
    factor = most / 127
    steps = (sizes / most).astype(np.float16).astype(np.float64) * factor
    return np.asarray(np.clip(np.round(matrix / np.where(steps > 0, steps, 1)), -127, 127) * steps)


def run(
    width: int, outputs: int, owners: list[list[DeltaMatrices]], threads: int, *, codes: bool = False
) -> tuple[Array, Array]:
    """(ours, the expected) of TOKENS rows each of sequences with these adapters; a step of all of them."""
    table, weight = operands(TOKENS, width, 1), operands(outputs, width, 2)

    def forward(ops: Operations, x: Tensor, *_: object) -> Tensor:
        return ops.linear(x, Linear(packed(weight), delta=PLACE))

    model = OneOperation(table, outputs, forward, spec_of(table))
    paged = NativePagedModel(model, Pool(threads), sequences=len(owners))  # type: ignore[arg-type]
    adapters = [PackedAdapter(deltas, 1, codes=codes) if deltas else None for deltas in owners]
    for adapter in adapters:
        paged.add(list(range(TOKENS)), adapter)
    rows = [Row(slot, 0, TOKENS, 1) for slot in range(len(owners))]
    addresses = array("Q", [0 if one is None else one.address for one in adapters])
    paged.model.run(rows, None, show=True, adapters=addresses)
    ours = paged.model.hidden(TOKENS * len(owners)).copy().reshape(len(owners), TOKENS, outputs)
    expected = np.stack([(table @ weight.T).numpy().astype(np.float64)] * len(owners))
    for number, deltas in enumerate(owners):
        for one in deltas:
            a, b = (rounded_to_codes(side) if codes else side.astype(np.float64) for side in (one.a, one.b))
            added = (table.numpy() @ a.T) @ b.T * one.scale
            expected[number, :, one.offset : one.offset + len(one.b)] += added
    return ours, expected


@pytest.mark.parametrize("rank", [1, 2, 15, 16, 17, 40])
@pytest.mark.parametrize("width", [16, 97])
def test_a_delta_is_added(native: CDLL, width: int, rank: int) -> None:
    """Of some parts of a product, whose sizes are no whole panels; a sequence without an adapter is left alone."""
    both = [part(0, 0, (21, rank, width)), part(2, 40, (10, 3, width), scale=-2.0)]
    ours, expected = run(width, 53, [both, [], both[:1], both], threads=2)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4 * rank)
    assert np.array_equal(ours[0], ours[3])
    assert abs(ours[0] - ours[1])[:, :21].max() > 0.1
    assert np.array_equal(ours[0][:, 21:40], ours[1][:, 21:40])
    assert np.array_equal(ours[0][:, 50:], ours[1][:, 50:])


@pytest.mark.parametrize("rank", [1, 3, 16, 17, 40])
@pytest.mark.parametrize("width", [16, 97, 150])
@pytest.mark.parametrize("stored", [np.float16, np.float32])
def test_codes(native: CDLL, width: int, rank: int, stored: type) -> None:
    """Rows of sizes far apart, a row and a matrix of zeros, numbers beyond float16."""
    first, second = part(0, 0, (21, rank, width)), part(2, 40, (10, 3, width), scale=-2.0)
    first.a[0] *= 1e-3
    first.b[::3] *= 1e-4
    first.b[5] = 0
    if stored is np.float32:
        second.b[:] *= 1e7
    both = [one._replace(a=one.a.astype(stored), b=one.b.astype(stored)) for one in (first, second)]
    zeros = [both[0]._replace(b=np.zeros_like(both[0].b))]
    ours, expected = run(width, 53, [both, [], both[:1], both, zeros], threads=2, codes=True)
    size = abs(expected).max(axis=(0, 1))  # of each output
    errors = abs(ours - expected) / size
    assert errors.mean() < 1e-3
    assert errors.max() < 1e-2  # a number in the middle of two codes may have either
    assert np.array_equal(ours[0], ours[3])
    assert np.array_equal(ours[1], ours[4])
    alone, _ = run(width, 53, [both], threads=1, codes=True)
    assert np.array_equal(alone[0], ours[0])


def test_codes_are_half_as_large_and_near(native: CDLL) -> None:
    """A percent of the delta, as of matrices that training begins with and adds to."""
    deltas = [part(0, 0, (200, 16, 400))]
    plain, coded = (run(400, 200, [deltas, []], threads=1, codes=codes)[0] for codes in (False, True))
    error, delta = coded[0] - plain[0], plain[0] - plain[1]
    assert np.linalg.norm(error) < 0.015 * np.linalg.norm(delta)
    sizes = [PackedAdapter(deltas, 1, codes=codes).num_bytes for codes in (False, True)]
    assert 1.7 < sizes[0] / sizes[1] < 2


def test_numbers_beyond_float16(native: CDLL) -> None:
    large = [part(0, 0, (21, 4, 16), size=1e6)]
    ours, expected = run(16, 21, [large], threads=1)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=100.0)


def test_large_matrices_are_divided_among_threads(native: CDLL) -> None:
    """One sequence of four units, more threads than that, parts of 400 and 180 KB: both matrices are split."""
    deltas = [part(0, 0, (700, 150, 600)), part(1, 700, (16, 140, 600))]
    alone, expected = run(600, 716, [deltas], threads=1)
    divided, _ = run(600, 716, [deltas], threads=16)
    assert np.array_equal(alone, divided)
    np.testing.assert_allclose(alone, expected, rtol=1e-3, atol=2e-2)


def test_a_program_uses_the_memory_of_the_one_beside_it() -> None:
    table = operands(TOKENS, 16, 1)
    product = Linear(packed(torch.eye(16)), delta=PLACE)
    model = OneOperation(table, 16, lambda ops, x, *_: ops.linear(x, product), spec_of(table))
    paged = NativePagedModel(model, Pool(1), sequences=1, adapted=True)  # type: ignore[arg-type]
    programs = paged.model._programs
    assert list(programs) == [(False, True), (False, False)]  # before the first step with an adapter
    paged.add(list(range(TOKENS)))
    paged.model.run(paged.rows({0: TOKENS}), None, show=True)
    assert len({one.logits(1).ctypes.data for one in programs.values()}) == 1


def test_embedding_and_head(native: CDLL) -> None:
    """One table is both. A delta of the one is none of the other's."""
    table, scale = operands(TOKENS, 24, 1), 3.0
    model = OneOperation(table, 24, lambda ops, x, *_: x, spec_of(table), scale=scale)
    model.head = model.embedding
    embed = part(0, 0, (24, 5, TOKENS))._replace(product=EMBEDDING)
    head = part(0, 0, (TOKENS, 18, 24), scale=-0.25)._replace(product=HEAD)
    for deltas in ([embed], [head], [embed, head]):
        paged = NativePagedModel(model, Pool(2))  # type: ignore[arg-type]
        paged.add(list(range(TOKENS)), PackedAdapter(deltas, 1))
        paged.add(list(range(TOKENS)))
        paged.step({0: TOKENS, 1: TOKENS})
        plain, x = table.numpy().astype(np.float64), table.numpy().astype(np.float64)
        if embed in deltas:
            x = x + (embed.a.T.astype(np.float64) @ embed.b.T) * embed.scale
        logits = scale * x @ plain.T
        if head in deltas:
            logits += scale * (x @ head.a.T) @ head.b.T * head.scale
        np.testing.assert_allclose(paged.logits(0), logits, rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(paged.logits(1), scale * plain @ plain.T, rtol=1e-4, atol=1e-3)
