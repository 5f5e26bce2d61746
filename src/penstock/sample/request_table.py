"""The sampling requests of all slots, and what they report beside the token: log-probabilities and inspections.

Every sampler has one table, and hands it the draw itself as a function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.flow import Admit
from penstock.kernels.upload import upload
from penstock.sample import logprobs
from penstock.sample.adjustments import Adjustments
from penstock.sample.constraints import StepConstraints
from penstock.sample.draws import Draws
from penstock.sample.inspect import InspectedDraw, inspect
from penstock.sample.slot_request import SlotRequest


@dataclass(frozen=True, slots=True)
class LogprobRows:
    """The rows of a step that request log-probabilities of the drawn token."""

    rows: list[int]
    index: Tensor  # the same, [n] int64
    counts: list[int]  # [n]: how many of the most likely tokens too

    @classmethod
    def of(cls, requests: Sequence[SlotRequest], device: torch.device) -> LogprobRows:
        """At least one of them does."""
        counts = {row: one.params.logprobs for row, one in enumerate(requests) if one.params.logprobs is not None}
        return cls(list(counts), upload(list(counts), device), list(counts.values()))


class RequestTable:
    """Caches what it computed for the slots of the last step: the next one mostly samples the same slots."""

    def __init__(self, vocab_size: int, tokens: Tensor) -> None:
        """`tokens` [slots, context]: the sequences. Penalties read them."""
        self.vocab_size, self.tokens, self.device = vocab_size, tokens, tokens.device
        self.by_slot: dict[int, SlotRequest] = {}
        self._argmax_slots: set[int] = set()
        self._logprob_slots: set[int] = set()
        self._inspect_slots: dict[int, int] = {}  # slot -> how many tokens to show of its next draw
        self._logprob_rows: tuple[list[int], LogprobRows] | None = None
        self._adjustments: tuple[list[int], list[bool], Adjustments] | None = None

    def admit(self, admit: Admit) -> SlotRequest:
        slot, request = admit.slot, SlotRequest.of(admit, self.vocab_size)
        self.by_slot[slot] = request
        (self._argmax_slots.add if request.argmax_only else self._argmax_slots.discard)(slot)
        (self._logprob_slots.discard if request.params.logprobs is None else self._logprob_slots.add)(slot)
        self._inspect_slots.pop(slot, None)
        if admit.inspect:
            self._inspect_slots[slot] = admit.inspect
        self._logprob_rows = self._adjustments = None
        return request

    def argmax_only(self, slots: Sequence[int]) -> bool:
        """Whether every one of these slots takes the token of its largest logit, and reports nothing else."""
        return self._argmax_slots.issuperset(slots)

    def report(
        self,
        logits: Tensor,
        slots: Sequence[int],
        positions: Sequence[int],
        constraints: StepConstraints | None,
        draw: Callable[[], Tensor],
    ) -> Draws:
        """Calls `draw`, which samples from `logits` [rows, vocab] and overwrites them, and adds the reports."""
        inspected = self._inspect(logits, slots, positions, constraints) if self._inspect_slots else {}
        rows = self._logprob_rows_of(slots)
        if rows is None:
            return Draws(draw(), None, [], constraints, inspected)
        model_logits = logits.index_select(0, rows.index)
        tokens = draw()
        measured = logprobs.measure(model_logits, tokens[rows.index], rows.counts)
        return Draws(tokens, measured, rows.rows, constraints, inspected)

    def adjustments(self, slots: list[int], positions: Sequence[int]) -> Adjustments:
        requests = [self.by_slot[slot] for slot in slots]
        before_min = [one.before_min_tokens(position) for one, position in zip(requests, positions, strict=True)]
        if self._adjustments is None or self._adjustments[:2] != (slots, before_min):
            made = Adjustments.of(requests, before_min, self.vocab_size, self.device)
            self._adjustments = (slots, before_min, made)
        return self._adjustments[2]

    def _inspect(
        self, logits: Tensor, slots: Sequence[int], positions: Sequence[int], constraints: StepConstraints | None
    ) -> dict[int, InspectedDraw]:
        inspected = {}
        for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
            if slot in self._inspect_slots:
                own = None if constraints is None else constraints.of(row)
                top = self._inspect_slots.pop(slot)
                inspected[row] = inspect(logits[row].clone(), self.by_slot[slot], position, self.tokens, top, own)
        return inspected

    def _logprob_rows_of(self, slots: Sequence[int]) -> LogprobRows | None:
        if self._logprob_slots.isdisjoint(slots):
            return None
        if self._logprob_rows is None or self._logprob_rows[0] != slots:
            made = LogprobRows.of([self.by_slot[slot] for slot in slots], self.device)
            self._logprob_rows = (list(slots), made)
        return self._logprob_rows[1]
