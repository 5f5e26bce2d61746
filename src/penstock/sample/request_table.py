"""The sampling requests of all slots: one table per sampler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from penstock.flow import Admit
from penstock.sample.constraints import StepConstraints
from penstock.sample.masks import Bits, mask_bytes
from penstock.sample.slot_request import SlotRequest


class LogprobRows(NamedTuple):
    """The rows of a step that request log-probabilities of the drawn token."""

    rows: list[int]
    counts: list[int]  # [rows]: how many of the most likely tokens too


class RequestTable:
    def __init__(self, vocab_size: int, num_slots: int, num_drafts: int = 0) -> None:
        """`num_drafts`: of a step, at most."""
        self.vocab_size = vocab_size
        self._num_slots = num_slots
        self.by_slot: dict[int, SlotRequest] = {}
        # [slots + drafts, mask_bytes]: the tokens that may be drawn, of slots with `masked`; up to date after
        # `update_masks`.
        self.allowed: Bits = np.zeros((num_slots + num_drafts, mask_bytes(vocab_size)), dtype=np.uint8)
        # By slot with static bans: whether its mask is the one before min_tokens; None: there is none yet.
        self._static_masks: dict[int, bool | None] = {}
        self._argmax_slots: set[int] = set()
        self._logprob_counts: dict[int, int] = {}  # by slot
        self._inspect_counts: dict[int, int] = {}  # by slot: how many tokens to show of its next draw

    def admit(self, admit: Admit) -> SlotRequest:
        slot, request = admit.slot, SlotRequest.of(admit, self.vocab_size)
        self.by_slot[slot] = request
        for by_slot in (self._static_masks, self._logprob_counts, self._inspect_counts):
            by_slot.pop(slot, None)
        if request.has_static_bans:
            self._static_masks[slot] = None
        if request.params.logprobs is not None:
            self._logprob_counts[slot] = request.params.logprobs
        if admit.inspect:
            self._inspect_counts[slot] = admit.inspect
        reports = slot in self._logprob_counts or slot in self._inspect_counts
        argmax_only = request.kind == "greedy" and not request.adjusts_logits and not reports
        (self._argmax_slots.add if argmax_only else self._argmax_slots.discard)(slot)
        return request

    def argmax_only(self, slots: Sequence[int]) -> bool:
        """Whether every one of these slots takes the token of its largest logit, and reports nothing else."""
        return self._argmax_slots.issuperset(slots)

    def update_masks(
        self, slots: Sequence[int], positions: Sequence[int], constraints: StepConstraints | None
    ) -> list[int]:
        """Write the masks of the tokens at `positions` to `allowed`. Gives the slots whose masks have changed."""
        changed = []
        for slot, position in zip(slots, positions, strict=True) if self._static_masks else ():
            if slot in self._static_masks:
                request = self.by_slot[slot]
                before_min = request.before_min_tokens(position)
                if self._static_masks[slot] != before_min and request.masks is not None:
                    self.allowed[slot] = request.masks.allowed_bits(self.vocab_size, before_min)
                    self._static_masks[slot] = before_min
                    changed.append(slot)
        if constraints is not None:
            constrained = self.mask_rows(slots, constraints)
            self.allowed[constrained] = constraints.allowed
            changed += constrained
        return changed

    def mask_rows(self, slots: Sequence[int], constraints: StepConstraints) -> list[int]:
        """The rows of `allowed` with the masks of constrained rows: their slots; behind all slots those of drafts."""
        places: list[int] = []
        unused = self._num_slots
        for index, row in enumerate(constraints.rows):
            if index and slots[constraints.rows[index - 1]] == slots[row]:
                places.append(unused)
                unused += 1
            else:
                places.append(slots[row])
        return places

    def logprob_rows(self, slots: Sequence[int]) -> LogprobRows | None:
        counts = self._logprob_counts
        if not counts or counts.keys().isdisjoint(slots):
            return None
        rows = [row for row, slot in enumerate(slots) if slot in counts]
        return LogprobRows(rows, [counts[slots[row]] for row in rows])

    def inspects(self, slots: Sequence[int]) -> bool:
        """Whether the next draw of one of these slots is to be shown in the sampling lab."""
        return bool(self._inspect_counts) and not self._inspect_counts.keys().isdisjoint(slots)

    def take_inspections(self, slots: Sequence[int]) -> dict[int, int]:
        """The rows of those, and how many tokens to show. Their later draws are not shown."""
        rows = {row: slot for row, slot in enumerate(slots) if slot in self._inspect_counts}
        return {row: self._inspect_counts.pop(slot) for row, slot in rows.items()}
