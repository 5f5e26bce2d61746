"""Repetition, presence and frequency penalties.

They have no state of their own: a sequence's tokens are in its slot on the device, and each step counts them again. The
cost is proportional to the sequence, as that of attention, and preemption and reuse of slots need no care.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock.kernels.upload import upload


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
    def of(cls, rows: Sequence[int], params: Sequence[Mapping[str, float]], device: torch.device) -> Penalties:
        """`rows` of the logits, and the draw parameters of each."""

        def column(name: str, dtype: type[np.generic]) -> Tensor:
            return upload([one[name] for one in params], device, dtype)[:, None]

        return cls(
            rows=upload(rows, device),
            slots=column("slot", np.int64)[:, 0],
            prompt_lengths=column("prompt_length", np.int64),
            repetition=column("repetition", np.float32),
            presence=column("presence", np.float32),
            frequency=column("frequency", np.float32),
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
