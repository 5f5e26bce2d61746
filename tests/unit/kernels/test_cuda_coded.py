"""Products with coded weights against float64, over odd shapes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed")

from helpers.coded_samples import random_coded
from helpers.triton_device import DEVICE, DTYPES, INTERPRETED, MARKS
from penstock.kernels.coded import Code, CodedMatrix, CodedRows, Coding, Inputs, codes_of, empty, fill
from penstock.kernels.cuda import coded_linear
from penstock.kernels.cuda.quantize_inputs import quantize_inputs
from penstock.kernels.cuda_ops import CudaOperations
from penstock.kernels.interface import Activation, Linear, Norm
from penstock.kernels.reference import gate, norm
from penstock.kernels.weight import Weight

pytestmark = MARKS

HALF, FLOAT = torch.float16, torch.float32
CODINGS = [
    Coding(Code.U4, 128, HALF),
    Coding(Code.U4, 32, HALF),
    Coding(Code.U4, 96, FLOAT, "zeros"),
    Coding(Code.U4, 128, torch.bfloat16, "zeros"),
    Coding(Code.U4, 1024, HALF, "zeros"),
    Coding(Code.U4, 32, HALF, "offsets"),
    Coding(Code.U4, 0, HALF, "offsets"),
    Coding(Code.U5, 32, HALF, "offsets"),
    Coding(Code.U6, 16, HALF),
    Coding(Code.S8, 32, HALF),
    Coding(Code.S8, 128, HALF, "offsets"),
    Coding(Code.S8, 0, FLOAT),
    Coding(Code.E4M3, 0, FLOAT),
    Coding(Code.E4M3, 128, FLOAT),
    Coding(Code.E2M1, 16, FLOAT),
]
SIZES = [(24, 256)] if INTERPRETED else [(40, 288), (1000, 1120), (17000, 384)]
COUNTS = [1, 5, 17, 70] if INTERPRETED else [1, 8, 17, 64, 200]


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def close(ours: Tensor, theirs: Tensor, tolerance: float | None = None) -> None:
    """Relative to the size of the whole."""
    error = (ours.double() - theirs).norm() / theirs.norm()
    assert error < (tolerance or (1e-5 if ours.dtype == torch.float32 else 1e-2))  # NaN never passes


def matrix(*samples: tuple[Coding, int], width: int, inputs: Inputs | None = None) -> tuple[CodedMatrix, Tensor]:
    """With what it stands for, float64."""
    parts, weights = [], []
    for seed, (coding, size) in enumerate(samples):
        drawn = random_coded(coding, size, width, seed)
        part = empty(coding, size, width, DEVICE)
        fill(part, 0, drawn.codes.to(DEVICE), drawn.scales.to(DEVICE), _moved(drawn.shifts))
        parts.append(part)
        weights.append(drawn.weights.to(DEVICE))
    return CodedMatrix(parts, inputs=inputs), torch.cat(weights)


def _moved(shifts: Tensor | None) -> Tensor | None:
    return None if shifts is None else shifts.to(DEVICE)


def weight(coded: CodedMatrix, dtype: torch.dtype) -> Weight:
    return Weight.from_coded(coded, "bfloat16" if dtype == torch.bfloat16 else "float32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", COUNTS)
@pytest.mark.parametrize(("size", "width"), SIZES)
@pytest.mark.parametrize("coding", CODINGS, ids=str)
def test_codes(coding: Coding, size: int, width: int, rows: int, dtype: torch.dtype) -> None:
    coded, weights = matrix((coding, size), width=width)
    x = numbers(rows, width, dtype=dtype, seed=9)
    expected = x.double() @ weights.T
    close(CudaOperations().linear(x, Linear(weight(coded, dtype))), expected)
    found = CudaOperations().logits(x, weight(coded, dtype), 0.0)
    assert found.dtype == torch.float32
    close(found, expected, 1e-5 if dtype == torch.float32 else 1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", COUNTS)
@pytest.mark.parametrize("activation", [None, "silu", "gelu_tanh"])
@pytest.mark.parametrize(("biased", "normed", "added"), [(True, False, False), (False, True, True), (True, True, True)])
@pytest.mark.parametrize("coding", [CODINGS[1], CODINGS[12]], ids=str)
def test_what_surrounds_a_product(
    coding: Coding,
    biased: bool,
    normed: bool,
    added: bool,
    activation: Activation | None,
    rows: int,
    dtype: torch.dtype,
) -> None:
    """Over and over: a product may leave nothing behind that the next one trips over."""
    size, width = 208, 512
    coded, weights = matrix((coding, size), width=width)
    x = numbers(rows, width, dtype=dtype, seed=9) / 16
    bias = numbers(size, dtype=dtype, seed=2) if biased else None
    one = Norm(numbers(width, seed=3) / 16, 1e-5) if normed else None
    expected = (norm.reference(x.double(), one).double() if one else x.double()) @ weights.T
    if bias is not None:
        expected += bias.double()
    if activation is not None:
        expected = gate.reference(expected, activation)
    for _ in range(2):
        onto = numbers(*expected.shape, dtype=dtype, seed=4) if added else None
        total = expected if onto is None else expected + onto.double()
        close(CudaOperations().linear(x, Linear(weight(coded, dtype), bias, one, activation), onto), total)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", COUNTS)
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("sizes", [(48, 64), (43, 69)])
def test_parts_of_different_codings(
    sizes: tuple[int, int], added: bool, activation: Activation | None, rows: int, dtype: torch.dtype
) -> None:
    coded, weights = matrix((CODINGS[5], sizes[0]), (CODINGS[8], sizes[1]), width=256)
    x, bias = numbers(rows, 256, dtype=dtype, seed=9) / 16, numbers(sum(sizes), dtype=dtype, seed=2)
    expected = x.double() @ weights.T + bias.double()
    if activation is not None:
        expected = gate.reference(expected, activation)
    onto = numbers(*expected.shape, dtype=dtype, seed=4) if added else None
    total = expected if onto is None else expected + onto.double()
    close(CudaOperations().linear(x, Linear(weight(coded, dtype), bias, gate=activation), onto), total)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 70])
def test_columns_in_another_order(rows: int, dtype: torch.dtype) -> None:
    coded, weights = matrix((CODINGS[0], 48), width=256)
    order = torch.randperm(256).to(DEVICE)
    ordered = CodedMatrix(coded.parts, order=order)
    x = numbers(rows, 256, dtype=dtype, seed=9)
    close(CudaOperations().linear(x, Linear(weight(ordered, dtype))), x[:, order].double() @ weights.T)


EIGHT_BITS = [(torch.int8, Code.S8)] if INTERPRETED else [(torch.int8, Code.S8), (torch.float8_e4m3fn, Code.E4M3)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 33, 70] if INTERPRETED else [*COUNTS, 1500])
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(("size", "width"), [(208, 288)] if INTERPRETED else [(48, 64), (208, 288), (4096, 2048)])
@pytest.mark.parametrize(("octets", "code"), EIGHT_BITS)
def test_eight_bits_on_both_sides(
    octets: torch.dtype,
    code: Code,
    size: int,
    width: int,
    added: bool,
    activation: Activation | None,
    rows: int,
    dtype: torch.dtype,
) -> None:
    """Either the inputs were rounded, or they were not."""
    coded, weights = matrix((Coding(code, 0, FLOAT), size), width=width, inputs=Inputs(octets))
    x, bias = numbers(rows, width, dtype=dtype, seed=9) / 16, numbers(size, dtype=dtype, seed=2)
    one = Norm(numbers(width, seed=3) / 16 + 1, 1e-5)
    found = CudaOperations().linear(x, Linear(weight(coded, dtype), bias, one), None)
    normed = norm.reference(x, one)
    if rows > coded_linear.EIGHT_BIT_ROWS:
        normed = unquantized(normed, octets)
    expected = normed.double() @ weights.T + bias.double()
    close(found, expected, 5e-3)
    if activation is not None:
        expected = gate.reference(expected, activation)
    onto = numbers(*expected.shape, dtype=dtype, seed=4) if added else None
    total = expected if onto is None else expected + onto.double()
    close(CudaOperations().linear(x, Linear(weight(coded, dtype), bias, one, activation), onto), total)


def unquantized(x: Tensor, octets: torch.dtype) -> Tensor:
    """x rounded to 8 bits with a scale for each token, and back."""
    largest = 127.0 if octets == torch.int8 else 448.0
    scales = x.float().abs().amax(dim=1, keepdim=True) / largest
    scaled = x.float() / scales
    return (scaled.round() if octets == torch.int8 else scaled.to(octets).float()) * scales


@pytest.mark.parametrize(("octets", "code"), EIGHT_BITS)
@pytest.mark.parametrize("width", [64, 200, 1024])
def test_inputs_in_eight_bits(octets: torch.dtype, code: Code, width: int) -> None:
    x = numbers(5, width) * 3
    for fixed in (None, 0.05):
        found = quantize_inputs(x, octets, fixed=fixed)
        part = CodedRows(Coding(code, 0, FLOAT), 5, width, found.values.view(torch.int16), found.scales.T, None)
        largest = 127.0 if octets == torch.int8 else 448.0
        scales = x.abs().amax(dim=1, keepdim=True) / largest if fixed is None else torch.full_like(x[:, :1], fixed)
        assert torch.allclose(found.scales.T, scales, rtol=1e-5)
        scaled = (x / found.scales.T).clamp(-largest, largest)
        expected = scaled.round() if octets == torch.int8 else scaled.to(octets).float()
        assert (codes_of(part).float() - expected).abs().max() <= (1 if octets == torch.int8 else 32)
        assert (codes_of(part).float() == expected).float().mean() > 0.99
