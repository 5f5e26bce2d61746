"""The audit of speculation: tokens of steps with drafts are drawn once more without, and compared."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from penstock.flow import Row
from penstock.kernels.arrays import Array

logger = logging.getLogger(__name__)


class Redraw(Protocol):
    def __call__(self, rows: list[Row], draws: list[int], /) -> list[int]:
        """The token that each of `rows` draws: of one position each, computed without drafts. `draws`: which draw of
        the audited step it repeats. Keys and values are written again, as they are. A backend whose logits depend on
        the tokens of a step gives the token of that step where the logits agree but for rounding."""


class DraftAudit:
    """Every difference is a defect."""

    def __init__(self, share: float) -> None:
        """`share` of the steps with drafts."""
        self._share = share
        self._due = 0.0

    def is_due(self) -> bool:
        """Whether to audit this step, which has drafts."""
        self._due += self._share
        due = self._due >= 1.0
        self._due -= due
        return due

    def compare(
        self, slots: Array, rows: Sequence[Row], tokens: Sequence[int], kept: Sequence[int], redraw: Redraw
    ) -> tuple[int, int]:
        """How many tokens were compared, and how many differ. `tokens` are those of all draws of the step, `kept` says
        how many of each row count; `slots` [slots, context] have the sequences, which stay as they are."""
        firsts, place = [], 0
        for row in rows:
            firsts.append(place)
            place += row.draws
        compared = mismatches = 0
        for depth in range(max(kept)):
            chosen = [
                (Row(row.slot, row.start + row.count - row.draws + depth, 1, 1), first + depth)
                for row, first, count in zip(rows, firsts, kept, strict=True)
                if row.draws > 1 and depth < count
            ]
            again = redraw([row for row, _ in chosen], [at for _, at in chosen])
            for (row, at), token in zip(chosen, again, strict=True):
                compared += 1
                slots[row.slot, row.start + 1] = tokens[at]
                if token != tokens[at]:
                    mismatches += 1
                    logger.error(
                        "the token %d at position %d of slot %d differs from the one drawn without drafts, %d",
                        tokens[at], row.start + 1, row.slot, token,
                    )  # fmt: skip
        return compared, mismatches
