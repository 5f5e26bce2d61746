"""Canonical codes go into words and come back, and stand for what they should."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.coded_samples import random_coded
from penstock.forward.dense_packing import DensePacker
from penstock.kernels.coded import Code, CodedMatrix, Coding, codes_of, empty, encode, fill
from penstock.kernels.reference.coded import dequantize
from penstock.kernels.weight import Form, Weight

CODINGS = [
    Coding(Code.U4, 32, torch.float16),
    Coding(Code.U4, 128, torch.bfloat16, "zeros"),
    Coding(Code.U4, 96, torch.float32),
    Coding(Code.U4, 0, torch.float32),
    Coding(Code.U4, 32, torch.float16, "offsets"),
    Coding(Code.U5, 32, torch.float16, "offsets"),
    Coding(Code.U6, 16, torch.float16),
    Coding(Code.S8, 32, torch.float16),
    Coding(Code.S8, 0, torch.float32),
    Coding(Code.E4M3, 128, torch.float32),
    Coding(Code.E4M3, 0, torch.float32),
    Coding(Code.E2M1, 16, torch.float32),
]


@pytest.mark.parametrize("coding", CODINGS, ids=str)
@pytest.mark.parametrize("cols", [32, 96, 1024, 1120])
def test_what_codes_stand_for(coding: Coding, cols: int) -> None:
    codes, scales, shifts, weights = random_coded(coding, 7, cols)
    matrix = encode(coding, codes, scales, shifts)
    assert matrix.shape == (7, cols)
    (part,) = matrix.parts
    found = codes_of(part)
    assert found.dtype == codes.dtype
    assert torch.equal(found.view(torch.uint8), codes.view(torch.uint8))
    assert torch.allclose(dequantize(matrix).double(), weights, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("coding", CODINGS, ids=str)
def test_bytes_are_known_before_memory_is_taken(coding: Coding) -> None:
    part = empty(coding, 7, 1120)
    stored = [part.words, part.scales, part.shifts]
    assert part.num_bytes == sum(tensor.nbytes for tensor in stored if tensor is not None)
    assert coding.num_bytes(7, 1024) <= 7 * 1024 * (coding.code.bits / 8 + 4 / (coding.group or 1024) + 0.3)


def test_rows_are_filled_piece_by_piece_and_parts_follow_each_other() -> None:
    first, second = Coding(Code.U4, 32, torch.float16, "zeros"), Coding(Code.U6, 16, torch.float16)
    a, b = random_coded(first, 9, 256), random_coded(second, 5, 256)
    part = empty(first, 9, 256)
    assert a.shifts is not None
    for begin, end in ((0, 4), (4, 9)):
        fill(part, begin, a.codes[begin:end], a.scales[begin:end], a.shifts[begin:end])
    other = empty(second, 5, 256)
    fill(other, 0, b.codes, b.scales)
    order = torch.randperm(256)
    matrix = CodedMatrix([part, other], order=order)
    assert matrix.shape == (14, 256)
    expected = torch.cat((a.weights, b.weights))
    assert torch.allclose(dequantize(matrix)[:, order].double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("coding", CODINGS, ids=str)
def test_some_rows_keep_their_codes(coding: Coding) -> None:
    """As the head of a quantized model, cut to the tokens that are drafted."""
    drawn, rows = random_coded(coding, 9, 288), np.array([7, 0, 7, 3])
    matrix = encode(coding, drawn.codes, drawn.scales, drawn.shifts)
    packer = DensePacker(1e-5, torch.bfloat16, torch.device("cpu"))
    for weight in (Weight.from_coded(matrix, "bfloat16"), Weight.from_dense(dequantize(matrix))):
        taken = packer.rows_of(weight, rows)
        assert taken.form is weight.form
        assert taken.shape == (4, 288)
        found = dequantize(taken.coded) if taken.form is Form.CODED else taken.dense
        assert torch.equal(found, dequantize(matrix)[rows])


def test_scales_of_a_whole_matrix_are_broadcast() -> None:
    coding = Coding(Code.E4M3, 0, torch.float32)
    codes, _, _, _ = random_coded(coding, 6, 64)
    part = empty(coding, 6, 64)
    fill(part, 0, codes, torch.full((1, 1), 0.5))
    assert torch.equal(dequantize(CodedMatrix([part])), codes.float() * 0.5)


def test_odd_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="groups of 40 columns: they must be multiples of 16"):
        empty(Coding(Code.U4, 40, torch.float16), 4, 80)
