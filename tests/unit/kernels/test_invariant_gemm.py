"""Batch-invariant products: right, and on a device the same bits for all tiles and numbers of rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed")

from helpers.triton_device import DEVICE, DTYPES, INTERPRETED, MARKS
from penstock.kernels.cuda import invariant_gemm as invariant_gemm_
from penstock.kernels.cuda.invariant_gemm import Tiling, invariant_gemm
from penstock.kernels.cuda_ops import CudaOperations
from penstock.kernels.interface import Activation, Linear, Norm
from penstock.kernels.torch_ops import TorchOperations
from penstock.kernels.weight import Weight

pytestmark = MARKS

COUNTS = [1, 2, 7, 16, 33, 64, 128, 200, 256, 300]
TILINGS = [
    Tiling(True, 16, 64, 128, 4, 4),
    Tiling(True, 16, 32, 64, 4, 2),
    Tiling(True, 64, 64, 64, 4, 6),
    Tiling(False, 64, 64, 64, 4, 4),
    Tiling(False, 16, 64, 64, 4, 3),
    Tiling(False, 128, 64, 64, 4, 4),
    Tiling(False, 64, 128, 32, 4, 4),
    Tiling(True, 128, 64, 64, 4, 3),
    Tiling(False, 128, 128, 64, 8, 3),
]


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Of very different sizes, so that the order of a sum shows in its last bits."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    plain, sizes = (torch.randn(*shape, generator=generator, device=DEVICE) for _ in "ab")
    return (plain * torch.exp(1.5 * sizes)).to(dtype)


def close(ours: Tensor, theirs: Tensor) -> None:
    assert ours.dtype == theirs.dtype
    error = (ours.double() - theirs.double()).norm() / theirs.double().norm()
    assert error < (1e-5 if ours.dtype == torch.float32 else 1e-2)  # NaN never passes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("activation", [None, "silu", "gelu_tanh"])
@pytest.mark.parametrize(("size", "width"), [(100, 77), (96, 128), (300, 1040)])
@pytest.mark.parametrize("rows", [1, 5, 33, 150])
def test_right(
    rows: int, size: int, width: int, activation: Activation | None, added: bool, dtype: torch.dtype
) -> None:
    gated = 1 if activation is None else 2
    x, weight = numbers(rows, width, dtype=dtype) / 16, numbers(gated * size, width, dtype=dtype, seed=1)
    bias, onto = numbers(gated * size, dtype=dtype, seed=2), numbers(rows, size, dtype=dtype, seed=3)
    norm = Norm(torch.ones(width, device=DEVICE), 1e-5) if added else None
    product = Linear(Weight.from_dense(weight), bias, norm, activation)
    exact = Linear(Weight.from_dense(weight.double()), bias.double(), norm, activation)
    expected = TorchOperations().linear(x.double(), exact, onto.double() if added else None)
    ours = CudaOperations(deterministic=True).linear(x, product, onto if added else None)
    close(ours, expected.to(dtype))


@pytest.mark.skipif(not INTERPRETED, reason="a device has TMA or not")
@pytest.mark.parametrize("tiling", [None, Tiling(True, 16, 32, 64, 4, 2), Tiling(False, 64, 64, 64, 4, 2)])
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize(("rows", "size", "width"), [(5, 96, 128), (150, 136, 200)])
def test_described(
    rows: int,
    size: int,
    width: int,
    activation: Activation | None,
    tiling: Tiling | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(invariant_gemm_, "_has_tma", lambda: True)
    x, weight = numbers(rows, width, dtype=torch.float16), numbers(2 * size, width, dtype=torch.float16, seed=1)
    x, weight = x / 64, weight if activation else weight[:size]
    onto = None if activation else torch.ones(rows, size, dtype=torch.float16)
    expected = TorchOperations().linear(x.float(), Linear(Weight.from_dense(weight.float()), gate=activation), onto)
    close(invariant_gemm(x, weight, onto=onto, activation=activation, tiling=tiling), expected.half())


@pytest.mark.skipif(INTERPRETED, reason="numpy's products depend on their shape")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("size", "width"), [(256, 4096), (100, 14336), (100, 1000), (60, 999)])
def test_same_bits_for_all_tiles(size: int, width: int, gated: bool, dtype: torch.dtype) -> None:
    x = numbers(300, width, dtype=dtype) / 256  # float16 holds all results
    weight = numbers((1 + gated) * size, width, dtype=dtype, seed=1)
    activation: Activation | None = "silu" if gated else None
    outs = [invariant_gemm(x, weight, activation=activation, tiling=tiling) for tiling in TILINGS]
    assert all(torch.equal(out, outs[0]) for out in outs)
    assert torch.equal(invariant_gemm(x, weight, activation=activation), outs[0])


# The products of an 8B model: qkv, output, gate and up, down, logits of a part of the vocabulary.
SHAPES = [(6144, 4096, None), (4096, 4096, None), (14336, 4096, "silu"), (4096, 14336, None), (16384, 4096, None)]


@pytest.mark.skipif(INTERPRETED, reason="numpy's products depend on their shape")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(("size", "width", "activation"), SHAPES)
def test_same_bits_for_all_numbers_of_rows(
    size: int, width: int, activation: Activation | None, added: bool, dtype: torch.dtype
) -> None:
    if dtype == torch.float32:
        size //= 16
    added &= activation is None
    most = 1100
    x, weight = numbers(most, width, dtype=dtype), numbers((1 if activation is None else 2) * size, width, dtype=dtype)
    onto = numbers(most, size, dtype=dtype, seed=2)

    def product(first: int, end: int) -> Tensor:
        into = onto[first:end].clone() if added else None
        return invariant_gemm(x[first:end].contiguous(), weight, activation=activation, onto=into)

    whole = product(0, most)
    for rows in (*COUNTS, 512, 1000):
        for first in {0, 37, most - rows} if rows <= 256 else {13}:
            assert torch.equal(product(first, first + rows), whole[first : first + rows])
