"""Embeddings: hidden states after the final norm, pooled over the chunks of a prompt. Only `Pooled.packed` waits for
the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.flow import Admit, Pooling, Row
from penstock.forward.hidden_states import HiddenStates, Vector
from penstock.sample.masks import Floats


@dataclass(frozen=True, slots=True)
class Pooled:
    """The embeddings that a step completes. On the device until `packed`."""

    rows: list[int]  # of the step
    vectors: list[Vector]
    read: Callable[[list[Vector]], Floats]  # HiddenStates.read

    def packed(self) -> list[bytes]:
        """As flow.Delta has them: of unit length. Waits for the device."""
        vectors = self.read(self.vectors)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return [vector.tobytes() for vector in (vectors / lengths.clip(min=1e-12)).astype("<f4", copy=False)]


@dataclass(slots=True)
class Embedder:
    """One prompt's hidden states, pooled chunk by chunk from position 0 on."""

    pooling: Pooling
    length: int  # of the prompt
    total: Vector | None = None  # the sum so far; normalised, it is the mean

    def add(self, hidden: HiddenStates, first: int, end: int, position: int) -> Vector | None:
        """`first .. end - 1` are the packed tokens of a chunk, which ends before `position`. Gives the vector at the
        end of the prompt."""
        if self.pooling == "mean":
            chunk = hidden.total(first, end)
            self.total = chunk if self.total is None else self.total + chunk
        if position < self.length:
            return None
        return self.total if self.pooling == "mean" else hidden.total(end - 1, end)


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

    def add(self, rows: Sequence[Row], hidden: HiddenStates, starts: Sequence[int]) -> Pooled | None:
        """`hidden` of a step, in which row r begins at `starts[r]`."""
        done: dict[int, Vector] = {}
        for index, row in enumerate(rows if self._by_slot else ()):
            embedder = self._by_slot.get(row.slot)
            if embedder is None:
                continue
            vector = embedder.add(hidden, starts[index], starts[index + 1], row.start + row.count)
            if vector is not None:
                done[index] = vector
                del self._by_slot[row.slot]
        return Pooled(list(done), list(done.values()), hidden.read) if done else None
