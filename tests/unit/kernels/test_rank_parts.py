"""The Triton kernels around the sums of several ranks, against torch."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from helpers.triton_device import DEVICE, DTYPES, MARKS
from penstock.forward.cuda_ranks import SilentRanks
from penstock.kernels.cuda import rank_parts
from penstock.kernels.cuda_ops import CudaOperations
from penstock.kernels.cuda_rank_ops import CudaRankOperations
from penstock.kernels.reference import embed
from penstock.kernels.weight import Weight
from penstock.model.weights.place import vocabulary_parts

pytestmark = MARKS


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width", "scale"), [(1, 64, 1.0), (7, 100, 33.9), (129, 1024, 1.0)])
def test_tokens_of_another_rank_are_zeros(rows: int, width: int, scale: float, dtype: torch.dtype) -> None:
    vocabulary, world = 203, 4
    table = torch.randn(vocabulary, width, device=DEVICE).to(dtype)
    tokens = torch.randint(vocabulary, (rows,), device=DEVICE)
    parts = vocabulary_parts(vocabulary, world)
    found = []
    for rank, (begin, end) in enumerate(parts):
        ops = CudaRankOperations(CudaOperations(), SilentRanks(rank, world), parts)
        found.append(ops.embed(tokens, Weight.from_dense(table[begin:end].contiguous()), scale))
    assert torch.equal(sum(found), embed.reference(tokens, table, scale))
    assert [int((one != 0).any(1).sum()) for one in found] == [
        int(((begin <= tokens) & (tokens < end)).sum()) for begin, end in parts
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (3, 100), (7, 4096), (130, 1032)])
def test_sums_are_added_onto_the_residual(rows: int, width: int, has_bias: bool, dtype: torch.dtype) -> None:
    y, onto = (torch.randn(rows, width, device=DEVICE).to(dtype) for _ in range(2))
    bias = torch.randn(width, device=DEVICE).to(dtype) if has_bias else None
    expected = (onto.float() + y.float() + (0.0 if bias is None else bias.float())).to(dtype)
    assert rank_parts.add(y, bias, onto) is onto
    torch.testing.assert_close(onto, expected)
