"""Changes to the logits of a step before the draw, grouped so that an operation touches only the rows that need it. On
the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock.sample.masks import Bits, TokenMasks, apply_mask
from penstock.sample.reference.penalties import Penalties
from penstock.sample.slot_request import SlotRequest

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Adjustments:
    """Of the rows of a step; good as long as steps sample the same slots in the same order."""

    biases: list[tuple[int, TokenMasks]]  # row and its biases
    penalties: Penalties | None
    masked: list[tuple[int, int]]  # row and slot

    @classmethod
    def of(cls, requests: Sequence[SlotRequest]) -> Adjustments:
        penalised = [row for row, one in enumerate(requests) if one.penalised]
        return cls(
            biases=[(row, one.masks) for row, one in enumerate(requests) if one.masks is not None],
            penalties=Penalties.of(penalised, [requests[row].draw_params for row in penalised], CPU)
            if penalised
            else None,
            masked=[(row, one.slot) for row, one in enumerate(requests) if one.draw_params["masked"]],
        )

    def apply(
        self,
        logits: Tensor,
        slot_tokens: Tensor,
        positions: Tensor,
        longest: int,
        allowed: Bits,
        mask_rows: Mapping[int, int],
    ) -> None:
        """Change `logits` [rows, vocab] in place. Row r draws the token of `positions[r]`, at most `longest`;
        `slot_tokens` [slots, context] are the sequences, `allowed` [n, mask_bytes] the tokens that may be drawn, by
        `mask_rows` or else by slot."""
        values = logits.numpy()
        for row, masks in self.biases:
            add_bias(values[row], masks)
        if self.penalties is not None:
            self.penalties.apply(logits, slot_tokens, positions, longest)
        for row, slot in self.masked:
            apply_mask(values[row], allowed[mask_rows.get(row, slot)])


def add_bias(values: np.ndarray[tuple[int], np.dtype[np.float32]], masks: TokenMasks) -> None:
    """Change `values` [vocab] in place."""
    if masks.bias_tokens is not None and masks.bias is not None:
        values[masks.bias_tokens] += masks.bias
