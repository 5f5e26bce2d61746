"""Drafts of a CUDA backend: a copy of the slots on the host, for proposers that read it and for what decides how much
is drafted; and the steps whose draws come back with how many of them count.

The scheduler plans no row that may get drafts before the last step of its sequence is settled, so the copy has all of
its tokens when something is proposed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from penstock.flow import Row, StepPlan, StepResult
from penstock.forward.accepted_draws import AcceptedDraws
from penstock.forward.draft_audit import DraftAudit
from penstock.forward.slot_arrays import SlotArrays
from penstock.kernels.cuda.accept import write_tokens
from penstock.kernels.upload import upload
from penstock.speculate.drafter import AllowedLength, DraftedRows, Drafter


class DraftedStep(NamedTuple):
    """A step that was launched."""

    rows: list[Row]  # as they were computed
    drafted: DraftedRows | None
    draws: AcceptedDraws | None


class CudaDrafts:
    """One per backend."""

    def __init__(
        self, slot_tokens: Tensor, copy: SlotArrays, drafter: Drafter, *, on_device: bool, audit: float = 0.0
    ) -> None:
        """`copy`: of the slots, on the host. `on_device`: drafts are in the slots when they are proposed. `audit`: the
        share of steps with drafts that is computed again without."""
        self._slot_tokens, self._copy, self._drafter, self._on_device = slot_tokens, copy, drafter, on_device
        self._launched: deque[DraftedStep] = deque()
        self._admitted: dict[int, int] = {}  # by slot: the number of the plan
        self.audit = DraftAudit(audit) if audit else None

    def apply(self, plan: StepPlan) -> None:
        """Write the changes of a plan."""
        for admit in plan.admits:
            self._drafter.admit(admit)
            self._admitted[admit.slot] = plan.number
        self._copy.apply(plan.admits, plan.extends)

    def draft(self, rows: Sequence[Row], allowed_length: AllowedLength) -> DraftedRows | None:
        """The drafts are in their slots then. None: the step has none."""
        drafted = self._drafter.draft(rows, allowed_length)
        if drafted is not None and not self._on_device:
            self._write(drafted)
        return drafted

    def push(self, rows: list[Row], drafted: DraftedRows | None, draws: AcceptedDraws | None) -> None:
        """A step was launched."""
        self._launched.append(DraftedStep(rows, drafted, draws))

    def settle(self, result: StepResult) -> None:
        """Of the oldest step."""
        step = self._launched.popleft()
        for row, outcome in zip(step.rows, result.rows, strict=True):
            if outcome.tokens and self._admitted.get(row.slot, 0) <= result.number:  # else the slot is another's by now
                first = row.start + row.count - row.draws + 1
                self._copy.tokens[row.slot, first : first + len(outcome.tokens)] = outcome.tokens
        if step.drafted is not None and step.draws is not None:
            self._drafter.settle(step.drafted, step.draws.kept.tolist())

    def reset(self) -> None:
        self._launched.clear()

    def _write(self, drafted: DraftedRows) -> None:
        entries = [
            (row.slot, row.start + row.count - row.draws + 1 + place, token)
            for row in drafted.rows
            for place, token in enumerate(drafted.drafts.get(row.slot, ()))
        ]
        if len(entries) % 2:  # kernels expect each line to begin at a multiple of 16 bytes
            entries.append(entries[-1])
        lines = upload(np.array(entries, dtype=np.int64).T.copy(), self._slot_tokens.device)
        write_tokens(lines, lines[2], self._slot_tokens)
