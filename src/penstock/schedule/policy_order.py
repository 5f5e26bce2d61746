"""A list of sequences in policy order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from operator import attrgetter

from penstock.schedule.sequence import Sequence

_rank = attrgetter("rank")


class PolicyOrder:
    """Sorted by rank. A change costs a binary search and a memmove: microseconds at a thousand entries."""

    def __init__(self) -> None:
        self._list: list[Sequence] = []

    def add(self, sequence: Sequence) -> int:
        """Returns how many are before it."""
        index = bisect_left(self._list, sequence.rank, key=_rank)
        self._list.insert(index, sequence)
        return index

    def remove(self, sequence: Sequence) -> None:
        index = bisect_left(self._list, sequence.rank, key=_rank)
        assert self._list[index] is sequence
        del self._list[index]

    @property
    def first(self) -> Sequence:
        return self._list[0]

    @property
    def last(self) -> Sequence:
        return self._list[-1]

    def __len__(self) -> int:
        return len(self._list)

    def __iter__(self) -> Iterator[Sequence]:
        """Entries that are still to come may be removed while iterating."""
        return iter(self._list)
