"""The audit of speculation: tokens of steps with drafts are drawn once more without, and compared."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.flow import Row
from penstock.forward.native_model import NativeModel
from penstock.kernels.arrays import Array
from penstock.sample.native_sampler import StepDraws

logger = logging.getLogger(__name__)


class DraftAudit:
    """For the native kernels, whose logits do not depend on the tokens of a step: every difference is a defect."""

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
        self,
        model: NativeModel,
        slots: Array,
        rows: Sequence[Row],
        draws: StepDraws,
        tokens: Sequence[int],
        kept: Sequence[int],
    ) -> tuple[int, int]:
        """How many tokens were compared, and how many differ. `tokens` are those of all draws of the step, `kept` says
        how many of each row count; `slots` [slots, context] have the sequences. Keys and values are written again, as
        they are; a token that differs is not."""
        firsts, place = [], 0
        for row in rows:
            firsts.append(place)
            place += row.draws
        compared = mismatches = 0
        for depth in range(max(kept)):
            chosen = [
                (Row(row.slot, row.start + depth, 1, 1), first + depth)
                for row, first, count in zip(rows, firsts, kept, strict=True)
                if row.draws > 1 and depth < count
            ]
            table = draws.table.pick([at for _, at in chosen])
            plain = StepDraws([row.slot for row, _ in chosen], table, None, None)
            for (row, at), token in zip(chosen, model.run([row for row, _ in chosen], plain, show=False), strict=True):
                compared += 1
                if token != tokens[at]:
                    mismatches += 1
                    slots[row.slot, row.start + 1] = tokens[at]
                    logger.error(
                        "the token %d at position %d of slot %d differs from the one drawn without drafts, %d",
                        tokens[at], row.start + 1, row.slot, token,
                    )  # fmt: skip
        return compared, mismatches
