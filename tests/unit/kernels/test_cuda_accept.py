"""The kernels of drafts against loops in Python, over random steps.

Needs a CUDA device, or Triton's interpreter: TRITON_INTERPRET=1.
"""

from __future__ import annotations

import random

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from helpers.triton_device import DEVICE, MARKS
from penstock.flow import Row
from penstock.forward.accepted_draws import AcceptedDraws
from penstock.kernels.cuda import draft_rows
from penstock.kernels.cuda.accept import write_tokens
from penstock.speculate.drafter import DraftedRows, count_kept

pytestmark = MARKS
PADDING = 7


def random_rows(drawn: random.Random, slots: int) -> list[Row]:
    """Decoding rows with drafts and without, parts of prompts, and ends of prompts."""
    rows = []
    for slot in drawn.sample(range(slots), drawn.randint(1, slots)):
        drafts, kind = drawn.choice([0, 0, 1, 3, 4, 16]), drawn.choice(["decode", "decode", "part", "end"])
        if kind == "decode":
            rows.append(Row(slot, drawn.randint(1, 20), 1 + drafts, 1 + drafts))
        else:
            rows.append(Row(slot, 0, drawn.randint(2, 9), kind == "end"))
    return rows


@pytest.mark.parametrize("seed", range(12))
def test_drafts_are_accepted_up_to_the_first_that_is_wrong(seed: int) -> None:
    drawn = random.Random(seed)
    rows = random_rows(drawn, 6)
    inputs = [drawn.randint(0, 2) for row in rows for _ in range(row.count)]
    tokens = [drawn.randint(0, 2) for row in rows for _ in range(row.draws)]
    drafts, place = {}, 0
    for row in rows:
        place += row.count
        if row.draws > 1:
            drafts[row.slot] = inputs[place - row.draws + 1 : place]
    accepted = AcceptedDraws(rows, torch.tensor(tokens, device=DEVICE), torch.tensor(inputs, device=DEVICE))
    wanted = [
        count if row.draws else 0
        for row, count in zip(rows, count_kept(DraftedRows(rows, drafts, {}), tokens), strict=True)
    ]
    assert accepted.kept.tolist() == wanted
    assert accepted.tokens.tolist() == tokens


def test_tokens_are_written_to_their_places() -> None:
    slots = torch.zeros(4, 50, dtype=torch.int32, device=DEVICE)
    places = [(slot, position) for slot in range(4) for position in range(1, 50, 1 + slot)]
    tokens = torch.arange(5, 5 + len(places), device=DEVICE)
    write_tokens(torch.tensor(places, device=DEVICE).T.contiguous(), tokens, slots)
    for (slot, position), token in zip(places, tokens.tolist(), strict=True):
        assert slots[slot, position] == token
    assert int((slots != 0).sum()) == len(places)


def test_the_tokens_behind_positions() -> None:
    slots = torch.randint(0, 99, (4, 30), dtype=torch.int32, device=DEVICE)
    rows = torch.tensor([[3, 0, 2], [7, 0, 28]], device=DEVICE)
    tokens = torch.zeros(3, dtype=torch.int64, device=DEVICE)
    draft_rows.next_tokens(rows, slots, tokens)
    assert tokens.tolist() == [int(slots[3, 8]), int(slots[0, 1]), int(slots[2, 29])]


def test_what_each_row_keeps() -> None:
    source = torch.randn(9, 1500, device=DEVICE)
    target = torch.zeros(5, 1500, device=DEVICE)
    places = torch.tensor([[4, 1, 2], [0, 3, 8]], device=DEVICE)
    draft_rows.keep_rows(source, torch.tensor([3, 1, 0], dtype=torch.int32, device=DEVICE), places, target)
    assert torch.equal(target[[4, 1, 2]], source[[2, 3, 8]])
    assert not target[[0, 3]].any()


def test_rows_of_drafting_end_at_their_own_numbers() -> None:
    """The third has no room for its drafts, the second for one."""
    slots = torch.arange(8 * 40, dtype=torch.int32, device=DEVICE).view(8, 40)
    places = torch.tensor([[5, 2, 0], [10, 20, 6], [40, 23, 8], [3, 2, 4], [5, 9, 0]], device=DEVICE)
    kept = torch.tensor([1, 2, 2], dtype=torch.int32, device=DEVICE)
    rows = torch.full((5, 4), -1, dtype=torch.int64, device=DEVICE)
    draft_rows.begin_drafts(places, kept, rows, PADDING)
    assert rows.tolist() == [
        [5, 2, PADDING, PADDING], [9, 20, 0, 0], [11, 22, 0, 0], [5, 9, PADDING, PADDING], [3, 1, 0, 0],
    ]  # fmt: skip
    draft_rows.advance_drafts(rows, PADDING)
    assert rows[:3].tolist() == [[5, PADDING, PADDING, PADDING], [10, 0, 0, 0], [12, 0, 0, 0]]
    draft_rows.advance_drafts(rows, PADDING)
    draft_rows.advance_drafts(rows, PADDING)
    assert rows[0].tolist() == [PADDING] * 4
    drafts = torch.empty(3, 16, dtype=torch.int32, device=DEVICE)
    draft_rows.collect_drafts(places, kept, slots, drafts)
    assert drafts[:, :4].tolist() == [[211, 212, 213, -1], [102, -1, -1, -1], [-1] * 4]
