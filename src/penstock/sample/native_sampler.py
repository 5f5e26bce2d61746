"""The sampler of the native CPU kernels. The native program draws inside the step, with biases, penalties, masks,
filters and log-probabilities. Here are the tables that it reads, and the sampling lab."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from penstock.flow import Admit
from penstock.flow.params import MAX_BIASES
from penstock.kernels.cpu import draw
from penstock.kernels.cpu.draw_table import DrawTable, LogprobTable, SlotTables
from penstock.sample.constraints import StepConstraints
from penstock.sample.inspect import Distribution, InspectedDraw, StageInput, inspect, softmax
from penstock.sample.logprobs import Logprobs
from penstock.sample.masks import Floats
from penstock.sample.reports import Reports
from penstock.sample.request_table import LogprobRows, RequestTable
from penstock.sample.slot_request import SlotRequest

Tokens = np.ndarray[Any, np.dtype[np.int32]]


def table_logprobs(table: LogprobTable, rows: list[int], counts: list[int]) -> Logprobs:
    """Copies of these rows."""
    return Logprobs(
        tokens=table.tokens[rows],
        logprobs=table.logprobs[rows],
        ranks=table.ranks[rows],
        top_tokens=table.top_tokens[rows],
        top_logprobs=table.top_logprobs[rows],
        counts=counts,
    )


class StepDraws(NamedTuple):
    """How the rows of a step draw. Good until one of the slots is admitted to; positions are written every step."""

    slots: list[int]
    table: DrawTable
    logprobs: LogprobTable | None  # written by the draw
    logprob_rows: LogprobRows | None

    def reports(
        self, constraints: StepConstraints | None, inspected: dict[int, InspectedDraw] | None = None
    ) -> Reports | None:
        """After the draw. None: nothing comes with the tokens."""
        table, rows = self.logprobs, self.logprob_rows
        if table is None or rows is None:
            return Reports(constraints=constraints, inspected=inspected or {}) if constraints or inspected else None
        measured = table_logprobs(table, rows.rows, rows.counts)
        return Reports(logprobs=measured, logprob_rows=rows.rows, constraints=constraints, inspected=inspected or {})


class NativeSampler:
    def __init__(self, vocab_size: int, tokens: Tokens, num_drafts: int = 0) -> None:
        """`tokens` [slots, context]: the sequences. Drawn tokens are written there. `num_drafts`: of a step, at
        most."""
        self._requests = RequestTable(vocab_size, len(tokens), num_drafts)
        self._tables = SlotTables.blank(tokens, MAX_BIASES, self._requests.allowed)
        self._cached: StepDraws | None = None
        self._drafts: tuple[list[int], DrawTable] | None = None  # slots, and how they draw drafts
        self.inspects = self._requests.inspects

    def admit(self, admit: Admit) -> None:
        request = self._requests.admit(admit)
        masks = request.masks
        if masks is not None and masks.bias_tokens is not None and masks.bias is not None:
            self._tables.bias_tokens[admit.slot, : len(masks.bias)] = masks.bias_tokens
            self._tables.biases[admit.slot, : len(masks.bias)] = masks.bias
        self._cached = self._drafts = None

    def draw_table(self, slots: list[int], positions: list[int]) -> DrawTable:
        """How a proposer draws a draft of each slot: as its request does, but without masks of constraints."""
        if self._drafts is None or self._drafts[0] != slots:
            requests = [self._requests.by_slot[slot] for slot in slots]
            params = [one.draw_params | {"masked": one.has_static_bans} for one in requests]
            self._drafts = slots, DrawTable(params, self._tables)
        self._drafts[1].positions[:] = positions
        return self._drafts[1]

    def prepare(self, slots: list[int], positions: list[int], constraints: StepConstraints | None) -> StepDraws:
        """How the program draws the token at `positions[r]` of the sequence in `slots[r]`; a slot with drafts has a row
        more for each, in order."""
        self._requests.update_masks(slots, positions, constraints)
        if self._cached is None or self._cached.slots != slots:
            table = DrawTable([self._requests.by_slot[slot].draw_params for slot in slots], self._tables)
            rows = self._requests.logprob_rows(slots)
            self._cached = StepDraws(slots, table, rows and self._logprob_table(rows, len(slots)), rows)
        self._cached.table.positions[:] = positions
        if constraints is not None:
            mask_rows = self._cached.table.table["mask_row"]
            mask_rows[constraints.rows] = self._requests.mask_rows(slots, constraints)
        return self._cached

    def sample(
        self,
        logits: Floats,
        slots: list[int],
        positions: list[int],
        constraints: StepConstraints | None = None,
    ) -> tuple[list[int], Reports | None]:
        """Draw from `logits` [rows, vocab], which are overwritten, as the program would; and inspect the draws of
        slots that request it."""
        draws = self.prepare(slots, positions, constraints)

        def read(row: int, request: SlotRequest) -> tuple[Floats, Distribution]:
            own = logits[row].copy()
            return own, lambda stage: self._distribution(own, request.slot, stage)

        inspected = inspect(self._requests, slots, positions, constraints, read)
        tokens = draw.draw(logits, draws.table, draws.logprobs)
        self._tables.tokens[slots, positions] = tokens
        return tokens, draws.reports(constraints, inspected)

    def _logprob_table(self, rows: LogprobRows, count: int) -> LogprobTable:
        counts = dict(zip(rows.rows, rows.counts, strict=True))
        return LogprobTable([counts.get(row, -1) for row in range(count)], self._requests.vocab_size)

    def _distribution(self, logits: Floats, slot: int, stage: StageInput) -> Floats:
        table = DrawTable(
            [{**stage.draw_params, "slot": 0, "mask_row": 0}], self._tables.with_mask(slot, stage.allowed)
        )
        return softmax(draw.filter_scores(logits, table))
