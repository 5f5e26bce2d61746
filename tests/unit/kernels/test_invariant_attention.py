"""Batch-invariant attention: right, and on a device the same bits however a query's sequence is computed."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed")

from helpers.paged_model import Row, make_batch
from helpers.triton_device import DEVICE, DTYPES, INTERPRETED, MARKS
from penstock.kernels.cuda import invariant_decode, invariant_prefill, invariant_splits, prefill_attention
from penstock.kernels.interface import Batch, Pages
from penstock.kernels.torch_ops import TorchOperations

pytestmark = MARKS

Span = tuple[int, int]  # positions first .. end - 1 of a sequence
SHAPES = [
    (4, 2, 16, 8),
    (6, 2, 24, 4),
    (32, 8, 128, 16),
    (3, 3, 64, 32),
    (8, 4, 256, 16),
]  # heads, KV heads, head_dim, block size
KEEPS = [(0, 0.0), (0, 1.5), (24, 1.5), (100, 0.0)]  # window, soft-cap
CASES = [*((shape, 0, 0.0) for shape in SHAPES), *((SHAPES[0], *keep) for keep in KEEPS[1:]), (SHAPES[1], 24, 1.5)]


def numbers(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(*shape, generator=generator, device=DEVICE).to(dtype)


class Sequences:
    """Random sequences in random blocks, with a query at each position; what is beyond a sequence holds NaN."""

    def __init__(
        self, lengths: list[int], shape: tuple[int, int, int, int], dtype: torch.dtype, window: int, softcap: float
    ) -> None:
        heads, kv_heads, head_dim, self.block_size = shape
        blocks_of = [-(-length // self.block_size) for length in lengths]
        total = sum(blocks_of) + 1
        free = random.Random(0).sample(range(1, total), total - 1)
        stored = (total, self.block_size, kv_heads, head_dim)
        self.pages = Pages(*(torch.full(stored, torch.nan, dtype=dtype, device=DEVICE) for _ in "kv"))
        self.blocks, self.queries = [], []
        for index, (length, number) in enumerate(zip(lengths, blocks_of, strict=True)):
            blocks = [free.pop() for _ in range(number)]
            for seed, pages in enumerate((self.pages.keys, self.pages.values)):
                filled = numbers(number * self.block_size, kv_heads, head_dim, dtype=dtype, seed=3 * index + seed)
                filled[length:] = torch.nan
                pages[blocks] = filled.view(number, *stored[1:])
            self.blocks.append(blocks)
            self.queries.append(numbers(length, heads, head_dim, dtype=dtype, seed=3 * index + 2))
        self.window, self.settings = window, {"scale": 0.3, "window": window, "softcap": softcap}

    def row(self, sequence: int, first: int, end: int) -> Row:
        blocks = self.blocks[sequence][: -(-end // self.block_size)]
        left_behind = max(0, first - self.window + 1) // self.block_size if self.window else 0
        return Row([0] * end, first, end - first, [[0] * left_behind + blocks[left_behind:]])

    def expected(self, sequence: int, first: int, end: int) -> Tensor:
        pages = Pages(self.pages.keys.float().cpu(), self.pages.values.float().cpu())
        batch = make_batch([self.row(sequence, first, end)], self.block_size)
        q = self.queries[sequence][first:end].float().cpu()
        return TorchOperations().attention(q, pages, batch.maps[0], batch, **self.settings)

    def batch(self, spans: dict[int, Span]) -> tuple[dict[int, Span], Batch, Tensor]:
        """Rows of one token come first."""
        spans = dict(sorted(spans.items(), key=lambda item: item[1][1] - item[1][0] > 1))
        batch = make_batch([self.row(index, *span) for index, span in spans.items()], self.block_size, DEVICE)
        return spans, batch, torch.cat([self.queries[index][slice(*span)] for index, span in spans.items()])

    def prefill(self, spans: dict[int, Span]) -> dict[int, Tensor]:
        """By sequence, of the positions of its span."""
        spans, batch, q = self.batch(spans)
        size = prefill_attention.SHAPES[q.element_size()].queries
        tiles = invariant_prefill.aligned_tiles(batch, range(len(spans)), size)
        out = torch.full_like(q.flatten(1), torch.nan)
        invariant_prefill.invariant_prefill(q, self.pages, batch.maps[0].tables, batch, tiles, out, **self.settings)
        return {index: out[batch.host_starts[n] : batch.host_starts[n + 1]] for n, index in enumerate(spans)}

    def decode(self, spans: dict[int, Span], layers: int = 1) -> dict[int, Tensor]:
        """Likewise, every token as a row of its own, as graphs have them."""
        spans, batch, q = self.batch(spans)
        of = [n for n, (first, end) in enumerate(spans.values()) for _ in range(first, end)]
        lengths = [position + 1 for span in spans.values() for position in range(*span)]
        runs = [min(end - position, 16) for first, end in spans.values() for position in range(first, end)]
        tables = batch.maps[0].tables[torch.tensor(of, device=DEVICE)]
        for table, length in zip(tables, lengths, strict=True):  # no further than they reach
            table[-(-length // self.block_size) :] = -(1 << 20)
        on_device = [torch.tensor(values, dtype=torch.int32, device=DEVICE) for values in (lengths, runs)]
        plan = invariant_splits.plan_invariant(q, self.pages.keys.shape[2], *on_device, self.window)
        for _ in range(layers):  # of which the second finds what the first one leaves behind
            out = torch.full_like(q.flatten(1), torch.nan)
            invariant_decode.invariant_decode(q, self.pages, tables, on_device[0], plan, out, **self.settings)
        return {index: out[batch.host_starts[n] : batch.host_starts[n + 1]] for n, index in enumerate(spans)}


def close(ours: Tensor, theirs: Tensor) -> None:
    error = (ours.double().cpu() - theirs.double()).norm() / theirs.double().norm()
    assert error < (1e-5 if ours.dtype == torch.float32 else 1e-2)  # NaN never passes


SPANS: dict[int, Span] = {0: (0, 9), 1: (30, 31), 2: (600, 700), 3: (129, 180), 4: (250, 262), 5: (0, 70), 6: (64, 129)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "window", "softcap"), CASES)
def test_right(shape: tuple[int, int, int, int], window: int, softcap: float, dtype: torch.dtype) -> None:
    sequences = Sequences([end for _, end in SPANS.values()], shape, dtype, window, softcap)
    prefill, decode = sequences.prefill(SPANS), sequences.decode(SPANS, layers=2)
    for index, span in SPANS.items():
        expected = sequences.expected(index, *span)
        close(prefill[index], expected)
        close(decode[index], expected)


def test_chunks_of_long_rows() -> None:
    lengths = torch.tensor([1, 8192, 8193, 16384, 16385, 131072, 131073, 1 << 20], dtype=torch.int32)
    sizes = [256, 256, 512, 512, 1024, 4096, 8192, 32768]
    runs = torch.ones(len(lengths), dtype=torch.int32, device=DEVICE)
    q = torch.zeros(len(lengths), 32, 128, device=DEVICE)
    plan = invariant_splits.plan_invariant(q, 8, lengths.to(DEVICE), runs, 0)
    covered: dict[int, list[Span]] = {}
    for row, first, end in plan.pieces.tolist():
        if first < end:
            covered.setdefault(row, []).append((first, end))
    for row, (length, size) in enumerate(zip(lengths.tolist(), sizes, strict=True)):
        pieces = sorted(covered[row])
        assert len(pieces) == plan.counts[row]
        assert [first for first, _ in pieces] == [0, *(end for _, end in pieces[:-1])]
        assert pieces[-1][1] == length
        assert all(first % size == 0 for first, _ in pieces)


def test_teams_end_where_chunks_get_larger() -> None:
    lengths = torch.tensor([8190, 8191, 8192, 8193, 8194, 8195], dtype=torch.int32, device=DEVICE)
    runs = torch.tensor([6, 5, 4, 3, 2, 1], dtype=torch.int32, device=DEVICE)
    plan = invariant_splits.plan_invariant(torch.zeros(6, 8, 128, device=DEVICE), 8, lengths, runs, 0)
    leads = {row: end for row, first, end in sorted(plan.pieces.tolist()) if first < end}
    assert leads == {0: 8192, 3: 8195}


@pytest.mark.skipif(INTERPRETED, reason="numpy's products depend on their shape")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("shape", "window", "softcap"), CASES)
def test_same_bits(shape: tuple[int, int, int, int], window: int, softcap: float, dtype: torch.dtype) -> None:
    length = 1400
    sequences = Sequences([length, 900, 40, 2000], shape, dtype, window, softcap)
    whole = sequences.prefill({0: (0, length)})[0]
    for size in (16, 100, 512):
        for first in [*range(0, length, 7 * size), length - 5]:
            span = (first, min(first + size, length))
            beside: dict[int, Span] = {1: (first % 800, 900), 0: span, 3: (0, 2000)}
            assert torch.equal(sequences.prefill(beside)[0], whole[slice(*span)])
    for rows in (1, 2, 7, 16, 33, 64, 200):
        for first in range(0, length, 173):
            span = (first, min(first + rows, length))
            beside = {3: (1900 - rows, 1900), 0: span, 2: (7, 40), 1: (0, first % 800 + 1)}
            for spans in ({0: span}, beside):
                assert torch.equal(sequences.decode(spans)[0], whole[slice(*span)])


@pytest.mark.skipif(INTERPRETED, reason="numpy's products depend on their shape")
@pytest.mark.parametrize("window", [0, 3000])
def test_same_bits_of_long_contexts(window: int) -> None:
    sequences = Sequences([20000, 3000], (32, 8, 128, 16), torch.bfloat16, window, 0.0)
    for first, end in ((8150, 8300), (16300, 16500), (19990, 20000)):
        whole = sequences.prefill({0: (first - 777, end)})[0][777:]
        assert torch.equal(sequences.prefill({0: (first, end)})[0], whole)
        assert torch.equal(sequences.decode({0: (first, end)})[0], whole)
        assert torch.equal(sequences.decode({1: (2800, 3000), 0: (first, end)})[0], whole)
        for position in range(first, end, 31):
            single = sequences.decode({0: (position, position + 1)})[0]
            assert torch.equal(single, whole[position - first : position - first + 1])
