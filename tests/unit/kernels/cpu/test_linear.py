"""Native products against plain torch, for every kind of weight and with every instruction set of the machine."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.packed_samples import linear, quantized, random_matrix, round_up, whole_codes
from penstock.kernels.cpu.packed import BLOCK, Kind, PackedMatrix

# The last one has rows of several pieces on every processor.
SHAPES = [(16, 32), (48, 64), (5, 96), (33, 576), (100, 33), (17, 1), (64, 1000), (35, 4500)]


def rounded(native: ctypes.CDLL, x: Tensor) -> Tensor:
    """x as the codes have it, float64."""
    made = quantized(native, x)
    values = whole_codes(made).double() * torch.from_numpy(made["scale"].copy()).double()[..., None]
    return values.flatten(1)[:, : x.shape[1]]


def assert_product(native: ctypes.CDLL, found: Tensor, x: Tensor, matrix: PackedMatrix, bias: Tensor | None) -> None:
    """To within what float32 sums of that many terms may differ by."""
    begin = 0
    for segment in matrix.segments:
        alone = PackedMatrix([segment], matrix.shape[1])
        inputs = x.double() if segment.kind.is_float else rounded(native, x)
        weights = torch.from_numpy(alone.unpack()).double()
        expected, size = inputs @ weights.T, inputs.abs() @ weights.abs().T
        if segment.offsets is not None:  # scale * code and offset are summed apart
            size += inputs.abs().sum(1, keepdim=True) * float(
                abs(segment.offsets).max() + 255 * segment.scales.astype(float).max()
            )
        if bias is not None:
            expected += bias[begin : begin + segment.rows]
            size += bias.abs().max()
        found_part = found[:, begin : begin + segment.rows]
        assert ((found_part - expected).abs() <= 2e-6 * size + 1e-30).all(), segment.kind.name
        begin += segment.rows


@pytest.mark.parametrize("kind", Kind)
def test_product(native: ctypes.CDLL, kind: Kind) -> None:
    torch.manual_seed(kind)
    for rows, cols in SHAPES:
        matrix = random_matrix((kind,), (rows,), cols)
        for tokens in (1, 2, 3, 7, 16, 37, 51):
            x, bias = torch.randn(tokens, cols), torch.randn(rows)
            assert_product(native, linear(native, x, matrix), x, matrix, None)
            assert_product(native, linear(native, x, matrix, bias, parts=3), x, matrix, bias)


def test_segments_of_different_kinds(native: ctypes.CDLL) -> None:
    kinds = (Kind.U4_OFFSET, Kind.U8_HALVES, Kind.BF16, Kind.U8)
    matrix = random_matrix(kinds, (40, 16, 3, 64), 96)
    x = torch.randn(5, 96)
    whole = linear(native, x, matrix)
    assert_product(native, whole, x, matrix, None)
    for parts in (2, 5, 40):  # more parts than panels: some have nothing to do
        assert linear(native, x, matrix, parts=parts).equal(whole)


@pytest.mark.parametrize("kind", [Kind.U4, Kind.U4_OFFSET, Kind.U8, Kind.U8_OFFSET])
def test_more_tokens_than_one_pass(native: ctypes.CDLL, kind: Kind) -> None:
    matrix = random_matrix((kind,), (56,), 2048)
    x = torch.randn(301, 2048)
    together = linear(native, x, matrix, parts=2)
    assert_product(native, together, x, matrix, None)
    for token in (0, 255, 256, 299, 300):
        assert linear(native, x[token : token + 1], matrix).equal(together[token : token + 1])


@pytest.mark.parametrize("kind", Kind)
def test_a_token_is_bitwise_the_same_in_any_batch(native: ctypes.CDLL, kind: Kind) -> None:
    matrix = random_matrix((kind,), (56,), 160)
    x = torch.randn(71, 160)
    together = linear(native, x, matrix)
    for token in range(71):
        assert linear(native, x[token : token + 1], matrix, parts=1 + token % 4).equal(together[token : token + 1])
    for count in (2, 3, 5, 8, 15, 33, 63, 66):
        assert linear(native, x[-count:], matrix).equal(together[-count:])


@pytest.mark.parametrize("kind", [Kind.F16, Kind.U4_OFFSET, Kind.U8])
def test_adds_to_what_is_there_and_touches_nothing_else(native: ctypes.CDLL, kind: Kind) -> None:
    matrix = random_matrix((kind,), (40,), 64)
    x, bias = torch.randn(6, 64), torch.randn(40)
    product = linear(native, x, matrix, bias)
    before = torch.randn(7, 50)
    out = before.clone()
    linear(native, x, matrix, bias, out=out[:6, 5:45], accumulate=True, parts=2)
    torch.testing.assert_close(out[:6, 5:45], before[:6, 5:45] + product)
    out[:6, 5:45] = before[:6, 5:45]
    assert out.equal(before)


@pytest.mark.parametrize("size", [0.0, 1e-42, 1e-30, 1e-10, 1.0, 1e30])
def test_extreme_inputs(native: ctypes.CDLL, size: float) -> None:
    matrix = random_matrix((Kind.U4, Kind.U4_OFFSET, Kind.U8, Kind.U8_OFFSET, Kind.U8_HALVES), (16,) * 5, 64)
    x = torch.randn(3, 64) * size
    x[0, 1] = size * 7
    found = linear(native, x, matrix)
    assert found.isfinite().all()
    assert_product(native, found, x, matrix, None)


def test_largest_codes_do_not_saturate(native: ctypes.CDLL) -> None:
    x = torch.full((2, 64), 127.0)
    x[1] = -127.0
    for kind in (Kind.U4, Kind.U8, Kind.U8_OFFSET, Kind.U8_HALVES):
        matrix = random_matrix((kind,), (16,), 64)
        matrix.segments[0].codes.fill(255)
        assert_product(native, linear(native, x, matrix), x, matrix, None)


def test_quantized_activations(native: ctypes.CDLL) -> None:
    x = torch.cat([torch.randn(20, 70) * 10.0**power for power in (-20, -3, 0, 3, 20)])
    x[3] = 0.0
    x[4, :32] = 0.0
    x[5, 7] = 2.0**-40  # more than the high codes reach
    x[6, 32:64] = 1.0  # no quad has a larger one than the others
    made = quantized(native, x)
    padded = torch.nn.functional.pad(x, (0, 26)).view(100, 3, BLOCK)
    largest = padded.view(100, 3, 8, 4).abs().amax(3).sort(2, descending=True).values
    most = torch.maximum(largest[..., 1], largest[..., 0] / 16)
    exact, scale = most / 127, torch.from_numpy(made["scale"].copy())
    some = most > 0
    assert ((scale >= exact * (1 - 1e-6)) & (scale <= exact * (17 / 16 + 1e-6)))[some].all()
    levels = torch.from_numpy(made["level"].copy())
    factor = (1 + levels / 16) * (torch.tensor(1.0) / 127)
    assert (torch.log2(scale / factor) % 1 == 0).all(), "levels times powers of two"
    codes = whole_codes(made)
    error = (codes * scale[..., None].double() - padded).abs()
    assert (error <= 0.5001 * scale[..., None]).all()
    assert np.abs(made["codes"].astype(int)).max() == 127
    assert codes.abs().max() == 2032
    assert torch.from_numpy(made["minus_sum"].copy()).equal(-codes.sum(2).int())
    assert torch.from_numpy(made["minus_first"].copy()).equal(-codes[..., :16].sum(2).int())
    sums = codes.sum(2) * torch.from_numpy(made["scale"].copy())
    torch.testing.assert_close(torch.from_numpy(made["scaled_sum"].copy()), sums)


@pytest.mark.parametrize("size", [10.0, 1e3, 1e6])
def test_outliers(native: ctypes.CDLL, size: float) -> None:
    """One in each block: the others are as precise as without it, as far as its 12 bits reach."""
    kinds = (Kind.U4, Kind.U4_OFFSET, Kind.U8, Kind.U8_OFFSET, Kind.U8_HALVES)
    matrix = random_matrix(kinds, (16,) * 5, 32 * 32)
    x = torch.randn(9, 32, 32)
    alone = x.clone()
    at = torch.arange(32)
    x[:, at, at] = size * torch.randn(9, 32).sign()
    alone[:, at, at] = 0.0
    step = round_up(torch.maximum(alone.abs().amax(2), torch.tensor(size / 16))) / 127
    x = x.flatten(1)
    assert ((rounded(native, x) - x).abs() <= 0.5001 * step.repeat_interleave(32, 1)).all()
    assert_product(native, linear(native, x, matrix), x, matrix, None)


def test_a_row_that_is_not_finite_leaves_others_alone(native: ctypes.CDLL) -> None:
    matrix = random_matrix((Kind.U4, Kind.U8, Kind.U8_HALVES), (16,) * 3, 64)
    x = torch.randn(5, 64)
    expected = linear(native, x, matrix)
    x[1], x[3, 7], x[3, 40] = torch.nan, torch.inf, -torch.inf
    assert linear(native, x, matrix)[::2].equal(expected[::2])


def test_gather(native: ctypes.CDLL) -> None:
    """Rows of a table, exactly as unpacked."""
    for kind in Kind:
        matrix = random_matrix((kind, Kind.U8), (35, 20), 100)
        tokens = torch.tensor([0, 54, 17, 34, 35, 17])
        out = torch.full((6, 100), torch.nan)
        native.penstock_gather(matrix.address, tokens.data_ptr(), 6, 2.5, out.data_ptr())
        torch.testing.assert_close(out, torch.from_numpy(matrix.unpack())[tokens] * 2.5, rtol=1e-6, atol=1e-7)


def test_unknown_instruction_set(native: ctypes.CDLL) -> None:
    before = native.penstock_isa()
    assert not native.penstock_select(b"vax")
    assert native.penstock_isa() == before
