"""`gather` against a batch made token by token."""

import pytest
import torch

from paged import Row as PagedRow
from paged import make_batch
from penstock.flow import Admit, Row, SamplingParams
from penstock.forward.inputs import gather
from penstock.forward.slots import Slots

BLOCK = 4
SEQUENCES = {  # slot -> tokens, blocks of the two groups
    0: ([10, 11, 12, 13, 14], [[3, 1], [8, 9]]),
    2: (list(range(50, 71)), [[7, 2, 6, 5, 4, 12], [1, 2, 3, 4, 5, 6]]),
    3: ([90], [[9], [15]]),
    4: (list(range(30, 42)), [[20, 21, 22], [25, 24, 23]]),
}


def make() -> Slots:
    slots = Slots(5, 40, BLOCK, 2, torch.device("cpu"))
    slots.apply([Admit(s, t, len(t), SamplingParams(), 0, 0, (), b) for s, (t, b) in SEQUENCES.items()], [])
    return slots


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 4, 1)],
        [(2, 20, 1), (0, 4, 1), (3, 0, 1)],
        [(4, 0, 12)],
        [(0, 4, 1), (3, 0, 1), (2, 3, 10), (4, 5, 7)],
        [(2, 4, 17), (0, 0, 4)],
    ],
)
def test_matches_a_batch_made_by_hand(rows: list[tuple[int, int, int]]) -> None:
    batch = gather([Row(slot, start, count, True) for slot, start, count in rows], make())
    expected = make_batch([PagedRow(SEQUENCES[s][0], start, count, SEQUENCES[s][1]) for s, start, count in rows], BLOCK)
    for name in ("tokens", "positions", "starts", "lengths"):
        mine, theirs = getattr(batch, name), getattr(expected, name)
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs), name
    for name in ("num_rows", "num_single", "host_starts", "host_lengths"):
        assert getattr(batch, name) == getattr(expected, name), name
    for mine, theirs in zip(batch.maps, expected.maps, strict=True):
        assert torch.equal(mine.targets, theirs.targets)
        assert mine.tables.dtype == torch.int32
        width = -(-max(batch.host_lengths) // BLOCK)
        assert mine.tables.shape == (len(rows), width)
        assert torch.equal(mine.tables, theirs.tables[:, :width])
