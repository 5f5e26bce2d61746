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


def run(width: int, outputs: int, owners: list[list[DeltaMatrices]], threads: int) -> tuple[Array, Array]:
    """(ours, the expected) of TOKENS rows each of sequences with these adapters; a step of all of them."""
    table, weight = operands(TOKENS, width, 1), operands(outputs, width, 2)

    def forward(ops: Operations, x: Tensor, *_: object) -> Tensor:
        return ops.linear(x, Linear(packed(weight), delta=PLACE))

    model = OneOperation(table, outputs, forward, spec_of(table))
    paged = NativePagedModel(model, Pool(threads), sequences=len(owners))  # type: ignore[arg-type]
    adapters = [PackedAdapter(deltas, 1) if deltas else None for deltas in owners]
    for adapter in adapters:
        paged.add(list(range(TOKENS)), adapter)
    rows = [Row(slot, 0, TOKENS, 1) for slot in range(len(owners))]
    addresses = array("Q", [0 if one is None else one.address for one in adapters])
    paged.model.run(rows, None, show=True, adapters=addresses)
    ours = paged.model.hidden(TOKENS * len(owners)).copy().reshape(len(owners), TOKENS, outputs)
    expected = np.stack([(table @ weight.T).numpy().astype(np.float64)] * len(owners))
    for number, deltas in enumerate(owners):
        for one in deltas:
            added = (table.numpy() @ one.a.T.astype(np.float64)) @ one.b.T * one.scale
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
