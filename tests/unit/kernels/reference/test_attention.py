"""The paged attention reference against a naive one that knows nothing of pages."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from helpers.paged_model import Row, make_batch
from penstock.kernels.interface import Batch, Pages
from penstock.kernels.reference import attention
from penstock.kernels.torch_ops import TorchOperations


def naive(q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int, softcap: float) -> Tensor:
    """One sequence: q are the last positions of k. [queries, heads, head_dim] -> the same"""
    offset, group = len(k) - len(q), q.shape[1] // k.shape[1]
    out = torch.empty_like(q)
    for query in range(len(q)):
        last = offset + query
        first = max(0, last - window + 1) if window else 0
        for head in range(q.shape[1]):
            scores = k[first : last + 1, head // group] @ q[query, head] * scale
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            out[query, head] = scores.softmax(0) @ v[first : last + 1, head // group]
    return out


class Case:
    """Random sequences in random blocks; unwritten slots hold NaN."""

    def __init__(self, rows: list[tuple[int, int]], *, heads: int, kv_heads: int, block_size: int, seed: int) -> None:
        """`rows` are (tokens already in the cache, tokens of this step)."""
        generator, head_dim = torch.Generator().manual_seed(seed), 8
        free = random.Random(seed).sample(range(1, 200), 199)
        shape = (200, block_size, kv_heads, head_dim)
        self.pages = Pages(torch.full(shape, torch.nan), torch.full(shape, torch.nan))
        self.keys, self.values, made = [], [], []
        for start, count in rows:
            blocks = [free.pop() for _ in range(-(-(start + count) // block_size))]
            k, v = (torch.randn(start + count, kv_heads, head_dim, generator=generator) for _ in range(2))
            for position in range(start + count):
                place = blocks[position // block_size], position % block_size
                self.pages.keys[place], self.pages.values[place] = k[position], v[position]
            self.keys.append(k)
            self.values.append(v)
            made.append(Row([0] * (start + count), start, count, [blocks]))
        self.batch = make_batch(made, block_size)
        self.q = torch.randn(self.batch.host_starts[-1], heads, head_dim, generator=generator) * 2

    def check(self, *, window: int = 0, softcap: float = 0.0) -> None:
        settings = {"scale": 0.3, "window": window, "softcap": softcap}
        ours = TorchOperations().attention(self.q, self.pages, self.batch.maps[0], self.batch, **settings)
        starts = self.batch.host_starts
        theirs = [
            naive(self.q[starts[row] : starts[row + 1]], k, v, **settings)
            for row, (k, v) in enumerate(zip(self.keys, self.values, strict=True))
        ]
        torch.testing.assert_close(ours, torch.cat(theirs).flatten(1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("window", [0, 1, 5, 16, 100])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (3, 1)])
def test_mixed_rows(heads: int, kv_heads: int, window: int, softcap: float) -> None:
    rows = [(0, 1), (30, 1), (7, 1), (0, 9), (0, 20), (13, 6), (40, 2)]
    Case(rows, heads=heads, kv_heads=kv_heads, block_size=4, seed=1).check(window=window, softcap=softcap)


@pytest.mark.parametrize("seed", range(12))
def test_random_shapes(seed: int) -> None:
    draw = random.Random(seed)
    singles = [(draw.randrange(40), 1) for _ in range(draw.randrange(5))]
    chunks = [(draw.choice([0, draw.randrange(20)]), draw.randrange(2, 15)) for _ in range(draw.randrange(3))]
    case = Case(singles + chunks or [(3, 1)], heads=4, kv_heads=2, block_size=draw.choice([1, 3, 16]), seed=seed)
    case.check(window=draw.choice([0, draw.randrange(1, 30)]), softcap=draw.choice([0.0, 2.0]))


def test_uneven_singles_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "SPLIT_TOKENS", 20)
    rows = [(length, 1) for length in (39, 2, 38, 1, 20, 21, 3, 37)]
    case = Case(rows, heads=4, kv_heads=2, block_size=4, seed=2)
    plan = attention.plan(case.batch, case.batch.maps[0], 4, 0, torch.float32)
    assert [group.rows.tolist() for group in plan.singles if group.rows is not None] == [[0, 2, 7], [4, 5], [1, 3, 6]]
    case.check()
    Case([*rows, (0, 6), (5, 7)], heads=4, kv_heads=2, block_size=4, seed=2).check()


def test_window_makes_uneven_rows_even(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "SPLIT_TOKENS", 20)
    case = Case([(39, 1), (12, 1), (8, 1)], heads=4, kv_heads=2, block_size=4, seed=3)
    (group,) = attention.plan(case.batch, case.batch.maps[0], 4, 8, torch.float32).singles
    assert group.bias is None
    assert len(group.slots) == 3 * 8


def test_new_batch_is_not_answered_from_the_last_one() -> None:
    ops = TorchOperations()
    for rows in ([(5, 1), (9, 1)], [(9, 1), (5, 1)], [(0, 4)]):
        case = Case(rows, heads=2, kv_heads=1, block_size=4, seed=4)
        settings = {"scale": 0.3, "window": 0, "softcap": 0.0}
        ours = ops.attention(case.q, case.pages, case.batch.maps[0], case.batch, **settings)
        fresh = TorchOperations().attention(case.q, case.pages, case.batch.maps[0], case.batch, **settings)
        assert ours.equal(fresh)


def test_plan_is_made_once_per_batch_and_window(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[int] = []
    original = attention.plan

    def counting(batch: Batch, *arguments: object) -> attention.Plan:
        planned.append(id(batch))
        return original(batch, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(attention, "plan", counting)
    case, ops = Case([(5, 1)], heads=2, kv_heads=1, block_size=4, seed=5), TorchOperations()
    for window in (0, 4, 0, 4, 0):
        ops.attention(case.q, case.pages, case.batch.maps[0], case.batch, scale=1.0, window=window, softcap=0.0)
    assert len(planned) == 2
