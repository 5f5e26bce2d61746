"""Sequences in policy order: by tenant's share, and within a share by rank."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain
from operator import attrgetter

from penstock.schedule.sequence import Sequence
from penstock.schedule.tenant_shares import TenantShare

_rank = attrgetter("rank")
_key = attrgetter("key")


class PolicyOrder:
    """A sorted list for each share. A change costs a binary search and a memmove: microseconds at a thousand entries.

    Counters change with every step, but the order of the shares only in `reorder` and `move`, so that it is stable
    while a step is planned.
    """

    def __init__(self) -> None:
        self._groups: dict[TenantShare, list[Sequence]] = {}  # none is empty
        self._shares: list[TenantShare] = []  # in order
        self._keys: list[tuple[bool, int, float, int]] = []  # of the shares, when they were put in order

    def add(self, sequence: Sequence) -> int:
        """Returns how many of its share are before it."""
        group = self._groups.get(sequence.share)
        if group is None:
            self._groups[sequence.share] = [sequence]
            self._insert(sequence.share)
            return 0
        index = bisect_left(group, sequence.rank, key=_rank)
        group.insert(index, sequence)
        return index

    def remove(self, sequence: Sequence) -> None:
        group = self._groups[sequence.share]
        index = bisect_left(group, sequence.rank, key=_rank)
        assert group[index] is sequence
        del group[index]
        if not group:
            del self._groups[sequence.share]
            self._delete(sequence.share)

    def reorder(self) -> None:
        """Put the shares in order by their counters now."""
        self._shares.sort(key=_key)
        self._keys = [share.key for share in self._shares]

    def move(self, share: TenantShare) -> None:
        """The same after a change of one counter."""
        if share in self._groups:
            self._delete(share)
            self._insert(share)

    @property
    def shares(self) -> list[TenantShare]:
        return self._shares.copy()

    @property
    def groups(self) -> list[tuple[TenantShare, list[Sequence]]]:
        """Shares in order with their sequences. The lists are this object's own: they follow its changes."""
        return [(share, self._groups[share]) for share in self._shares]

    def of_share(self, share: TenantShare) -> list[Sequence]:
        return self._groups.get(share, [])

    @property
    def first(self) -> Sequence:
        return self._groups[self._shares[0]][0]

    @property
    def last(self) -> Sequence:
        return self._groups[self._shares[-1]][-1]

    def __bool__(self) -> bool:
        return bool(self._shares)

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def __iter__(self) -> Iterator[Sequence]:
        return chain.from_iterable(group for _, group in self.groups)

    def _insert(self, share: TenantShare) -> None:
        index = bisect_left(self._keys, share.key)
        self._shares.insert(index, share)
        self._keys.insert(index, share.key)

    def _delete(self, share: TenantShare) -> None:
        index = self._shares.index(share)
        del self._shares[index], self._keys[index]
