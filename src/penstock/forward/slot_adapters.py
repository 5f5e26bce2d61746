"""Which adapters the sequences in the slots have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from penstock.flow import Adapter, Admit, Row

L = TypeVar("L")
Held = TypeVar("Held", covariant=True)


class HeldAdapters(Protocol[Held]):
    """Adapters in memory: `adapters.AdapterCache`, or `rank_adapters.FollowingAdapters`."""

    def get(self, adapter: Adapter) -> Held:
        """Of one that is there: a row of the step has it."""

    def clear(self) -> None: ...


class SlotAdapters(Generic[L]):
    """Weights are looked up for each step: a slot whose sequence has ended keeps none in memory."""

    def __init__(self, adapters: HeldAdapters[L] | None) -> None:
        """None: no sequence has one."""
        self._adapters = adapters
        self._slots: dict[int, Adapter] = {}

    def admit(self, admit: Admit) -> None:
        if admit.adapter is not None:
            self._slots[admit.slot] = admit.adapter
        else:
            self._slots.pop(admit.slot, None)

    def of(self, rows: Sequence[Row]) -> list[L | None] | None:
        """[rows]; None: no row has one."""
        slots, adapters = self._slots, self._adapters
        if adapters is None or not any(row.slot in slots for row in rows):
            return None
        return [adapters.get(slots[row.slot]) if row.slot in slots else None for row in rows]
