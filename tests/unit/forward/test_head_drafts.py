"""What a drafter gets of heads on a GPU, with drafts that are known beforehand in place of those of a device."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch

from penstock.flow import Admit, Row, SamplingParams
from penstock.flow.step_costs import StepCosts
from penstock.forward import cuda_proposer
from penstock.forward.cuda_proposer import DraftsUnderWay, HeadDrafts
from penstock.forward.readback import Readback
from penstock.speculate.drafter import Drafter

MOST = 4  # rows of the largest graph


class KnownDrafts(HeadDrafts):
    """Of slot s: s, s + 1, ..."""

    def __init__(self) -> None:
        self._sizes, self._zeros = [1, 2, MOST], torch.zeros(1)
        self._asked, self._ready, self._saved_from = {}, {}, {}

    def _launch(self, rows: list[tuple[int, int, int]], kept: torch.Tensor) -> None:
        assert len(rows) <= MOST
        drafts = [[slot + place for place in range(cuda_proposer.MOST_DRAFTS)] for slot, _, _ in rows]
        under_way = DraftsUnderWay([slot for slot, _, _ in rows], Readback(torch.tensor(drafts)))
        for slot, _, _ in rows:
            self._ready[slot] = under_way


@pytest.mark.parametrize("count", [3, 4, 9])
def test_more_rows_than_graphs_have_get_no_drafts(count: int) -> None:
    tokens = np.zeros((count, 32), dtype=np.int32)
    drafter = Drafter(KnownDrafts(), StepCosts({1: 1.0, 64: 1.001}), tokens, 64)
    for slot in range(count):
        drafter.admit(Admit(slot, [1] * 8, 8, SamplingParams(), 0, 0, (), [[0]]))
    drafted = drafter.draft([Row(slot, 7, 1, 4) for slot in range(count)], lambda slot, drafts: len(drafts))
    assert drafted is not None
    assert drafted.drafts == {slot: [slot, slot + 1, slot + 2] for slot in range(min(count, MOST))}
    assert [row.draws for row in drafted.rows] == [4] * min(count, MOST) + [1] * max(0, count - MOST)
    assert cast(Any, tokens[0, 8:11]).tolist() == [0, 1, 2]
