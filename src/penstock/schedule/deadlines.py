"""When open sequences time out, the earliest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush

from penstock.schedule.sequence import Sequence

STALE = 1024  # entries of ended sequences, before the heap is rebuilt


class Deadlines:
    def __init__(self, sequences: Mapping[str, Sequence]) -> None:
        """`sequences`: the open ones, by id. Those with a deadline are added; that they end need not be said."""
        self._sequences = sequences
        self._heap: list[tuple[float, str]] = []  # ids of ended sequences may still be in it

    def add(self, sequence: Sequence) -> None:
        if sequence.deadline is None:
            return
        heappush(self._heap, (sequence.deadline, sequence.id))
        if len(self._heap) > 2 * len(self._sequences) + STALE:
            self._heap = [entry for entry in self._heap if entry[1] in self._sequences]
            heapify(self._heap)

    def expired(self, now: float) -> Iterator[Sequence]:
        """The open sequences whose time is over, each once."""
        while self._heap and self._heap[0][0] <= now:
            deadline, id = heappop(self._heap)
            sequence = self._sequences.get(id)
            if sequence is not None and sequence.deadline == deadline:
                yield sequence
