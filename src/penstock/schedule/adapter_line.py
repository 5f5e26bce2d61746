"""Sequences that wait for their adapters to be in memory, and who may run before them.

The planner sets a sequence aside when its turn comes and its adapter is not resident. Sequences after it whose
adapters are resident, or that have none, are preferred and continue. Adapters are loaded in policy order. They replace
adapters that nobody uses, and no more are loaded than can be admitted soon. Once `MAX_OVERTAKES` sequences with
adapters have started while the first in line found no room, no others start until it has room. So the adapters in use
become free, and no adapter waits forever.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from penstock.errors import PenstockError
from penstock.flow import Adapter
from penstock.schedule.policy_order import PolicyOrder
from penstock.schedule.sequence import Sequence

MAX_OVERTAKES = 64


class Residency(Protocol):
    """Adapters in memory, see `adapters.AdapterCache`."""

    def is_resident(self, adapter: Adapter) -> bool: ...

    def start(self, adapter: Adapter) -> bool: ...

    def pin(self, adapter: Adapter) -> None: ...

    def unpin(self, adapter: Adapter) -> None: ...

    def check_integrity(self, pins: Counter[tuple[str, str]]) -> None: ...


class AdapterLine:
    def __init__(self, adapters: Residency) -> None:
        self._adapters = adapters
        self._line = PolicyOrder()
        self._loading: set[tuple[str, str]] = set()
        self._released: set[Sequence] = set()  # from the line, and not yet admitted
        self._blocked: Sequence | None = None  # the first in line for whose adapter there is no room
        self._overtakes = 0  # of that one
        self._changed = False  # since the line was last looked through

    def __len__(self) -> int:
        return len(self._line)

    def must_wait(self, sequence: Sequence) -> bool:
        """Whether it may not be admitted now."""
        adapter = sequence.message.adapter
        if adapter is None or sequence.pinned:
            return False
        return not self._adapters.is_resident(adapter) or self._is_full

    def join(self, sequence: Sequence) -> None:
        sequence.in_line = True
        self._line.add(sequence)
        self._changed = True

    def leave(self, sequence: Sequence) -> None:
        """It has ended, or may run."""
        sequence.in_line = False
        self._line.remove(sequence)
        self._changed = True
        if sequence is self._blocked:
            self._blocked, self._overtakes = None, 0

    def pin(self, sequence: Sequence) -> None:
        """Its adapter stays."""
        if sequence.message.adapter is not None and not sequence.pinned:
            self._adapters.pin(sequence.message.adapter)
            sequence.pinned = True
            self._overtakes += self._blocked is not None

    def admit(self, sequence: Sequence) -> None:
        """It runs."""
        self.pin(sequence)
        self._end_release(sequence)

    def unpin(self, sequence: Sequence) -> None:
        self._end_release(sequence)
        if sequence.pinned:
            assert sequence.message.adapter is not None
            self._adapters.unpin(sequence.message.adapter)
            sequence.pinned = False
            self._changed = True

    def finish_load(self, adapter: Adapter) -> list[Sequence]:
        """It is resident, or failed. Gives the sequences that wait for it."""
        self._loading.discard(adapter.key)
        self._changed = True
        return [one for one in self._line if one.message.adapter is not None and one.message.adapter.key == adapter.key]

    def advance(self, free_slots: int) -> list[Sequence]:
        """Begin to load adapters, in policy order. Gives the sequences that may run now: they have left the line, with
        their adapters pinned."""
        if not self._changed:
            return []
        self._changed = False
        self._line.reorder()
        released, blocked = [], False
        for sequence in list(self._line):
            adapter = sequence.message.adapter
            assert adapter is not None
            if self._adapters.is_resident(adapter):
                if not self._is_full or sequence.pinned:
                    self.leave(sequence)
                    self.pin(sequence)
                    released.append(sequence)
                    self._released.add(sequence)
            elif adapter.key not in self._loading and not blocked:
                blocked = not self._load(sequence, adapter, free_slots)
        self._changed = bool(released)
        return released

    def _load(self, sequence: Sequence, adapter: Adapter, free_slots: int) -> bool:
        """False: sequences after it may not load theirs before."""
        if len(self._loading) + len(self._released) >= max(1, free_slots):
            return False
        if self._adapters.start(adapter):
            self._loading.add(adapter.key)
            self.pin(sequence)
            if sequence is self._blocked:
                self._blocked, self._overtakes = None, 0
            return True
        if self._blocked is not sequence:
            self._blocked, self._overtakes = sequence, 0
        return False

    def _end_release(self, sequence: Sequence) -> None:
        if sequence in self._released:
            self._released.remove(sequence)
            self._changed = True

    @property
    def _is_full(self) -> bool:
        return self._blocked is not None and self._overtakes >= MAX_OVERTAKES

    def check_integrity(self, sequences: list[Sequence]) -> None:
        if {id(one) for one in self._line} != {id(one) for one in sequences if one.in_line}:
            raise PenstockError("a sequence that waits for its adapter is not in line")
        pinned = [one.message.adapter for one in sequences if one.pinned]
        self._adapters.check_integrity(Counter(adapter.key for adapter in pinned if adapter is not None))
