"""The hidden states of a step that requests read: for prompt log-probabilities and embeddings."""

from __future__ import annotations

from typing import Any, Protocol, Self

from penstock.sample.logprobs import Logprobs
from penstock.sample.masks import Floats


class Vector(Protocol):
    """[hidden] float32, an array of numpy or torch."""

    def __add__(self, other: Any, /) -> Self: ...


class HiddenStates(Protocol):
    """Of a step's tokens, all rows packed together; on their device until something is read."""

    def total(self, first: int, end: int) -> Vector:
        """The sum over tokens first .. end - 1, which later steps do not change."""
        ...

    def logprobs(self, first: int, end: int, slot: int, position: int, count: int) -> Logprobs:
        """Tokens first .. end - 1 are those of `slot` from `position` on: the log-probabilities of the tokens that
        follow them, and of the `count` most likely ones. May overwrite what `total` reads."""
        ...

    @staticmethod
    def read(vectors: list[Any]) -> Floats:
        """Vectors as one array [n, hidden]. Waits for the device."""
        ...
