"""The Triton kernels of low-rank deltas against float64: every product, mixed ranks, rows without an adapter, adapters
that lack a projection."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed")

from helpers.coded_samples import random_coded
from helpers.triton_device import DEVICE, DTYPES, INTERPRETED, MARKS
from penstock.forward.adapter_blobs import PackedAdapter, pack
from penstock.forward.delta_tiles import plan
from penstock.kernels.coded import Code, Coding, encode
from penstock.kernels.cuda import low_rank
from penstock.kernels.cuda.low_rank import FEW, MANY, DeltaMemory, StepDeltas, Tiles
from penstock.kernels.cuda_ops import CudaOperations
from penstock.kernels.interface import Norm
from penstock.kernels.low_rank import EMBEDDING, HEAD, DeltaMatrices, LowRank
from penstock.kernels.weight import Weight

pytestmark = MARKS
LAYERS = 2
SMALL = {"qkv": (96, (64, 32)), "output": (64, (96, 0)), "gate_up": (80, (100, 100)), "down": (1040, (64, 0))}
LARGE = {"qkv": (4096, (4096, 1024)), "gate_up": (4096, (14336, 14336)), "down": (14336, (4096, 0))}
SHAPES = list(SMALL.items()) + ([] if INTERPRETED else list(LARGE.items()))
Adapters = list[list[DeltaMatrices]]


def numbers(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def make_adapters(product: LowRank, inputs: int, widths: list[int], ranks: tuple[int, ...], dtype: Any) -> Adapters:
    """With numbers that `dtype` has. Some lack a projection."""
    seeds, adapters = count(100), []
    for rank in ranks:
        offset, parts = 0, []
        for part, width in enumerate(widths):
            a = (numbers(next(seeds), rank, inputs) / inputs**0.5).to(dtype).float().numpy()
            b = (numbers(next(seeds), width, rank) / rank**0.5).to(dtype).float().numpy()
            if (rank + part) % 5 != 4 or len(widths) == 1:
                parts.append(DeltaMatrices(product, part, offset, a, b, 0.5 + part))
            offset += width
        adapters.append(parts)
    return adapters


def load(adapters: Adapters, sizes: dict[str, tuple[int, int]], dtype: torch.dtype) -> DeltaMemory:
    packed: list[PackedAdapter] = [
        pack(parts, LAYERS, lambda size: torch.empty(size, dtype=dtype)) for parts in adapters
    ]
    table, blobs, begin = [np.zeros_like(packed[0].entries)], [], 0
    for one in packed:
        places = {}
        for number, blob in one.blobs:
            places[number] = begin // 16
            begin += len(blob)
            blobs.append(blob)
        table.append(one.placed(places))
    return DeltaMemory(torch.cat(blobs).to(DEVICE), torch.from_numpy(np.stack(table)).to(DEVICE), sizes)


def tiles_of(owners: list[int], rows: int) -> Tiles:
    """With two that have no rows, as those that a graph does not need."""
    order, tiles = plan(np.array(owners, dtype=np.int32), rows)
    tiles = np.concatenate((tiles, np.zeros((2, 3), dtype=np.int32)))
    return Tiles(torch.from_numpy(order).to(DEVICE), torch.from_numpy(tiles).to(DEVICE), rows)


def mixed(adapters: int, each: int) -> list[int]:
    """Owners of rows: 0 is none."""
    owners = np.arange(adapters + 1).repeat(each)
    return np.random.default_rng(0).permutation(owners).tolist()  # type: ignore[no-any-return]


def with_deltas(y: Tensor, x: Tensor, owners: list[int], adapters: Adapters) -> Tensor:
    y = y.double().clone()
    for row, owner in enumerate(owners):
        for one in adapters[owner - 1] if owner else ():
            a, b = (torch.from_numpy(matrix).double().to(y.device) for matrix in (one.a, one.b))
            y[row, one.offset : one.offset + len(b)] += one.scale * (b @ (a @ x[row].double()))
    return y


def close(found: Tensor, expected: Tensor, plain: Tensor, dtype: torch.dtype) -> None:
    """Relative to what was added."""
    assert (found.double() - expected).norm() < (1e-5 if dtype == torch.float32 else 1e-2) * (expected - plain).norm()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [FEW, MANY])
@pytest.mark.parametrize("ranks", [(1, 16), (17, 256, 8)])
@pytest.mark.parametrize(("product", "shape"), SHAPES, ids=[f"{name}{shape[0]}" for name, shape in SHAPES])
def test_deltas_of_products(
    product: str, shape: tuple[int, tuple[int, int]], ranks: tuple[int, ...], rows: int, dtype: torch.dtype
) -> None:
    """Around a product, here one that gave random numbers; and what the gated one computes of the next."""
    inputs, (size, others) = shape
    delta, down = LowRank(1, product), LowRank(1, "down")
    widths = [size] + [others] * (len(delta.projections) - 1)
    gated = product == "gate_up"
    adapters = make_adapters(delta, inputs, widths, ranks, dtype)
    behind = make_adapters(down, size, [48], ranks, dtype) if gated else [[] for _ in ranks]
    owners = mixed(len(ranks), 3 if INTERPRETED else 11)
    memory = load(
        [a + b for a, b in zip(adapters, behind, strict=True)], {"down": (48, 0), product: (size, others)}, dtype
    )
    deltas = StepDeltas(memory, tiles_of(owners, rows), None, len(owners))
    x, y = numbers(1, len(owners), inputs, dtype=dtype).to(DEVICE), numbers(2, len(owners), sum(widths), dtype=dtype)
    norm = Norm(1 + 0.1 * numbers(3, inputs).to(DEVICE), 1e-5) if product in ("qkv", "gate_up") else None
    exact, y = x.double(), y.to(DEVICE)
    if norm is not None:
        exact = exact * torch.rsqrt((exact * exact).mean(1, keepdim=True) + norm.eps) * norm.weight.double()
    normed, shrunk = low_rank.shrink(x, norm, delta, deltas)
    close(normed, exact, torch.zeros_like(exact), dtype)
    expected, plain = with_deltas(y, exact, owners, adapters), y.double()
    found = low_rank.expand(shrunk, y.clone(), delta, deltas, "silu" if gated else None)
    if not gated:
        close(found, expected, plain, dtype)
        return
    expected, plain = (torch.nn.functional.silu(one[:, :size]) * one[:, size:] for one in (expected, plain))
    close(found, expected, plain, dtype)
    assert (deltas.ahead is not None) == (rows == FEW)
    _, shrunk = low_rank.shrink(found, None, down, deltas)
    assert deltas.ahead is None
    zeros = torch.zeros(len(owners), 48, dtype=dtype, device=DEVICE)
    expected = with_deltas(zeros, found, owners, behind)
    close(low_rank.expand(shrunk, zeros.clone(), down, deltas), expected, zeros.double(), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [FEW, MANY])
def test_deltas_of_tables(rows: int, dtype: torch.dtype) -> None:
    vocab, width, ranks = 1100, 96, (3, 40)
    owners = mixed(len(ranks), 5)
    heads = make_adapters(HEAD, width, [vocab], ranks, dtype)
    embeddings = make_adapters(EMBEDDING, vocab, [width], ranks, dtype)
    memory = load([a + b for a, b in zip(embeddings, heads, strict=True)], {"head": (vocab, 0)}, dtype)
    deltas = StepDeltas(memory, tiles_of(owners, rows), None, len(owners))
    x = numbers(1, len(owners), width, dtype=dtype).to(DEVICE)
    logits = numbers(2, len(owners), vocab).to(DEVICE)
    expected = with_deltas(logits, x, owners, heads)
    _, shrunk = low_rank.shrink(x, None, HEAD, deltas)
    close(low_rank.expand(shrunk, logits.clone(), HEAD, deltas), expected, logits.double(), dtype)
    tokens = torch.randint(vocab, (len(owners),), generator=torch.Generator().manual_seed(3)).to(DEVICE)
    one_hot = torch.nn.functional.one_hot(tokens, vocab)
    added = with_deltas(torch.zeros_like(x), one_hot, owners, embeddings) * 3.0
    low_rank.embed(found := x.clone(), tokens, 3.0, deltas)
    close(found, x.double() + added, x.double(), dtype)


@pytest.mark.parametrize("coding", [None, Coding(Code.U6, 16, torch.float16)], ids=["dense", "coded"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_deltas_of_heads_in_each_form(dtype: torch.dtype, coding: Coding | None) -> None:
    """Whatever the head's weights are kept as, logits have what the adapters add."""
    vocab, width, ranks = 160, 96, (3, 20)
    owners = mixed(len(ranks), 4)
    adapters = make_adapters(HEAD, width, [vocab], ranks, dtype)
    x = numbers(1, len(owners), width, dtype=dtype).to(DEVICE)
    if coding is None:
        head = Weight.from_dense(numbers(5, vocab, width, dtype=dtype).to(DEVICE))
    else:
        drawn = random_coded(coding, vocab, width, 5)
        coded = encode(coding, drawn.codes.to(DEVICE), drawn.scales.to(DEVICE))
        head = Weight.from_coded(coded, "bfloat16" if dtype == torch.bfloat16 else "float32")
    ops = CudaOperations()
    plain = ops.logits(x, head, 0.0).double()
    ops.deltas = StepDeltas(load(adapters, {"head": (vocab, 0)}, dtype), tiles_of(owners, FEW), None, len(owners))
    close(ops.logits(x, head, 0.0), with_deltas(plain, x, owners, adapters), plain, dtype)
