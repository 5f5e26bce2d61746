"""Rows grouped by adapter: every row is in one tile, and a tile has rows of one adapter."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch

from penstock.forward.delta_tiles import GraphTiles, plan

DRAWN = np.random.default_rng(0)


@pytest.mark.parametrize("rows", [8, 64])
@pytest.mark.parametrize(
    "numbers", [[0], [5], [0] * 100, [3] * 129, [1, 2, 3, 2, 1, 0], DRAWN.integers(0, 9, 500).tolist()]
)
def test_tiles_have_each_row_once(numbers: list[int], rows: int) -> None:
    order, tiles = plan(np.array(numbers, dtype=np.int32), rows)
    assert order.dtype == tiles.dtype == np.int32
    assert sorted(order) == list(range(len(numbers)))
    covered = []
    for number, first, count in tiles.tolist():
        own = order[first : first + count].tolist()
        assert {numbers[row] for row in own} == {number}
        assert own == sorted(own)
        assert 1 <= count <= rows
        covered += own
    assert covered == order.tolist()
    most = sum(-(-numbers.count(number) // rows) for number in set(numbers))
    assert len(tiles) == most


def test_a_graph_reads_tiles_of_all_its_rows() -> None:
    places = GraphTiles(64, torch.device("cpu"))
    for size in (1, 16, 64):
        captured = places.without_adapters(size)
        assert sorted(captured.order.tolist()) == list(range(size))
        assert captured.tiles[:, 0].eq(0).all()
        assert captured.tiles[:, 2].sum() == size
        numbers = np.array([4, 0, 4][:size], dtype=np.int32)
        places.place(size).copy_(torch.from_numpy(places.packed(numbers, size)))
        tiles = places.of(size)
        assert sorted(tiles.order.tolist()) == list(range(size))
        found = [one for one in tiles.tiles.tolist() if one[2]]
        assert sum(count for _, _, count in found) == size
        for number, first, count in found:
            rows = tiles.order[first : first + count].tolist()
            assert all((numbers[row] if row < len(numbers) else 0) == number for row in rows)
        assert tiles.tiles[len(found) :].eq(0).all()
