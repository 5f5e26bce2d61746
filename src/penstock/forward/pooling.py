"""Embeddings: hidden states after the final norm, pooled over the chunks of a prompt. Only `Pooled.packed` waits for
the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.flow import Admit, Pooling, Row


@dataclass(frozen=True, slots=True)
class Pooled:
    """The embeddings that a step completes. On the device."""

    rows: list[int]  # of the step
    vectors: Tensor  # [rows, hidden] float32, each of unit length

    def packed(self) -> list[bytes]:
        """As flow.Delta has them. Waits for the device."""
        return [vector.tobytes() for vector in self.vectors.cpu().numpy().astype("<f4", copy=False)]


@dataclass(slots=True)
class Embedder:
    """One prompt's hidden states, pooled chunk by chunk from position 0 on."""

    pooling: Pooling
    length: int  # of the prompt
    total: Tensor | None = None  # [hidden] float32: the sum so far; normalised, it is the mean

    def add(self, hidden: Tensor, end: int) -> Tensor | None:
        """`hidden` [chunk, hidden] are the states of the positions before `end`. Gives the vector at the end of the
        prompt."""
        if self.pooling == "mean":
            chunk = hidden.sum(0, dtype=torch.float32)
            self.total = chunk if self.total is None else self.total + chunk
        if end < self.length:
            return None
        return self.total if self.pooling == "mean" else hidden[-1].to(torch.float32)


class Embedders:
    """The embedders of slots whose prompts are not complete."""

    def __init__(self) -> None:
        self._by_slot: dict[int, Embedder] = {}

    def include_any(self, rows: Sequence[Row]) -> bool:
        """Whether any of these rows is of such a slot."""
        return bool(self._by_slot) and any(row.slot in self._by_slot for row in rows)

    def admit(self, admit: Admit) -> None:
        """Replaces the slot's embedder: a preempted sequence starts from position 0 again."""
        self._by_slot.pop(admit.slot, None)
        if admit.pooling is not None:
            self._by_slot[admit.slot] = Embedder(admit.pooling, admit.prompt_length)

    def add(self, rows: Sequence[Row], hidden: Tensor, starts: Sequence[int]) -> Pooled | None:
        """`hidden` [tokens, hidden] of a step, in which row r begins at `starts[r]`."""
        done: dict[int, Tensor] = {}
        for index, row in enumerate(rows if self._by_slot else ()):
            embedder = self._by_slot.get(row.slot)
            if embedder is None:
                continue
            vector = embedder.add(hidden[starts[index] : starts[index + 1]], row.start + row.count)
            if vector is not None:
                done[index] = vector
                del self._by_slot[row.slot]
        if not done:
            return None
        return Pooled(list(done), torch.nn.functional.normalize(torch.stack(list(done.values())), dim=-1))
