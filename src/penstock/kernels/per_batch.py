"""A cache for what all layers of a step share: computed for the first of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar, cast

from penstock.kernels.interface import Batch

T = TypeVar("T")


class PerBatch:
    """Caches for the newest batch only. Keys may contain ids of objects that live as long as the batch."""

    def __init__(self) -> None:
        self._batch: Batch | None = None
        self._made: dict[Hashable, object] = {}

    def once(self, batch: Batch, key: Hashable, make: Callable[[], T]) -> T:
        """The result of `make`, called once per batch and key."""
        if batch is not self._batch:
            self._batch, self._made = batch, {}
        if key not in self._made:
            self._made[key] = make()
        return cast(T, self._made[key])
