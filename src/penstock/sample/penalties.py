"""Repetition, presence and frequency penalties.

They have no state of their own: a sequence's tokens are in its slot on the device, and each step counts them again. The
cost is proportional to the sequence, as that of attention, and preemption and reuse of slots need no care.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock.flow import SamplingParams
from penstock.kernels.upload import upload


def enabled(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def values(params: SamplingParams) -> dict[str, float]:
    """The penalties of a request, named as in `kernels.sampling_layout`."""
    return {
        "repetition": params.repetition_penalty,
        "presence": params.presence_penalty,
        "frequency": params.frequency_penalty,
    }


@dataclass(frozen=True, slots=True)
class Penalties:
    """The penalties of the n rows that have any."""

    rows: Tensor  # [n] int64, into the logits
    slots: Tensor  # [n] int64, into the token rows
    prompt_lengths: Tensor  # [n, 1] int64
    repetition: Tensor  # [n, 1] float32
    presence: Tensor  # [n, 1] float32
    frequency: Tensor  # [n, 1] float32

    @classmethod
    def of(cls, entries: list[tuple[int, int, int, SamplingParams]], device: torch.device) -> Penalties:
        """`entries`: row of the logits, slot, prompt length and parameters of each."""

        def column(values: list[float]) -> Tensor:
            return upload(values, device, np.float32)[:, None]

        rows, slots, prompt_lengths, params = zip(*entries, strict=True)
        return cls(
            rows=upload(rows, device),
            slots=upload(slots, device),
            prompt_lengths=upload(prompt_lengths, device)[:, None],
            repetition=column([p.repetition_penalty for p in params]),
            presence=column([p.presence_penalty for p in params]),
            frequency=column([p.frequency_penalty for p in params]),
        )

    def apply(self, logits: Tensor, tokens: Tensor, positions: Tensor, width: int) -> None:
        """Change `logits` [rows, vocab] in place. `tokens` [slots, context] are the slot rows; row r draws the token of
        `positions[r]`, so that those before it are known; no row has more than `width` of them."""
        vocab_size = logits.shape[1]
        lengths = positions[self.rows][:, None]
        column = torch.arange(width, device=logits.device)
        known = column < lengths
        ids = tokens[:, :width].index_select(0, self.slots).to(torch.int64)
        ids = torch.where(known, ids, ids[:, :1])  # a token seen twice gets the same new value twice
        output = (known & (column >= self.prompt_lengths)).to(torch.float32)
        counts = torch.zeros(len(ids), vocab_size, device=logits.device).scatter_add_(1, ids, output).gather(1, ids)
        at = (ids + self.rows[:, None] * vocab_size).view(-1)
        flat = logits.view(-1)
        values = flat[at].view_as(ids)
        values = torch.where(values < 0, values * self.repetition, values / self.repetition)
        values -= self.presence * (counts > 0)
        values -= self.frequency * counts
        flat[at] = values.view(-1)
