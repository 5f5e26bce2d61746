"""Changes to the logits of a step before the draw, grouped so that an operation touches only the rows that need it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.sample import masks, penalties
from penstock.sample.constraints import StepConstraints
from penstock.sample.masks import StepMasks
from penstock.sample.penalties import Penalties
from penstock.sample.slot_request import SlotRequest


@dataclass(frozen=True, slots=True)
class Adjustments:
    """Of the rows of a step; good as long as steps sample the same slots in the same order and no `min_tokens` ends."""

    masks: StepMasks | None
    penalties: Penalties | None

    @classmethod
    def of(
        cls, requests: Sequence[SlotRequest], before_min: Sequence[bool], vocab_size: int, device: torch.device
    ) -> Adjustments:
        """`before_min[r]`: row r draws one of its first `min_tokens`."""
        masked = [(row, one.masks, before_min[row]) for row, one in enumerate(requests) if one.masks is not None]
        penalised = [
            (row, one.slot, one.prompt_length, one.params)
            for row, one in enumerate(requests)
            if penalties.enabled(one.params)
        ]
        return cls(
            masks=masks.combine(masked, vocab_size, device) if masked else None,
            penalties=Penalties.of(penalised, device) if penalised else None,
        )

    def apply(
        self,
        logits: Tensor,
        slot_tokens: Tensor,
        positions: Tensor,
        longest: int,
        constraints: StepConstraints | None,
    ) -> None:
        """Change `logits` [rows, vocab] in place. Row r draws the token of `positions[r]`, at most `longest`;
        `slot_tokens` [slots, context] are the sequences."""
        if self.masks is not None:
            self.masks.add_bias(logits)
        if self.penalties is not None:
            self.penalties.apply(logits, slot_tokens, positions, longest)
        if self.masks is not None:
            self.masks.ban(logits)
        if constraints is not None:
            constraints.apply(logits)
