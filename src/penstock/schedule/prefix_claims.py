"""Prefixes that running sequences compute now, and the sequences that wait for them.

A running sequence *claims* the full blocks it is about to compute. A waiting one whose next block is claimed *parks*
until that block is published, and then finds it in the cache instead of computing it a second time. So the choices of
one request, or a burst of requests with one system prompt, compute their common prefix once.

It cannot deadlock: a claim lives exactly as long as its owner runs and the block is not published, so a parked sequence
always waits for a running one, and running ones never wait for claims. The end of a claim wakes the parked sequences.
"""

from __future__ import annotations

from penstock.cache import ChainLink
from penstock.errors import PenstockError
from penstock.schedule.sequence import Sequence, State


class PrefixClaims:
    def __init__(self) -> None:
        self._owners: dict[bytes, Sequence] = {}
        self._parked: dict[bytes, set[Sequence]] = {}

    def claim(self, sequence: Sequence, begin: int) -> None:
        """Claim the blocks of its chain from index `begin` on, except those that another sequence has claimed."""
        links = sequence.chain.links
        sequence.claimed = range(begin, len(links))
        for index in sequence.claimed:
            self._owners.setdefault(links[index].key, sequence)

    def release(self, sequence: Sequence, end: int | None = None) -> list[Sequence]:
        """Release its claims on blocks before index `end` (None: all). Returns the sequences that waited for them."""
        claimed = sequence.claimed
        stop = claimed.stop if end is None else min(end, claimed.stop)
        woken: list[Sequence] = []
        for index in range(claimed.start, stop):
            key = sequence.chain.links[index].key
            if self._owners.get(key) is sequence:
                del self._owners[key]
                woken += self._parked.pop(key, ())
        sequence.claimed = range(max(claimed.start, stop), claimed.stop)
        for waiter in woken:
            waiter.parked = None
        return woken

    def last_claimed(self, links: list[ChainLink], waiter: Sequence) -> bytes | None:
        """The key of the last of the leading `links` that are claimed without a gap, if the first one is. None waits
        for a claim of a worse tier, and only background sequences wait for background sequences."""
        level = (waiter.background, waiter.share.tier)
        last = None
        for link in links:
            owner = self._owners.get(link.key)
            if owner is None or (owner.background, owner.share.tier) > level:
                break
            last = link.key
        return last

    def park(self, sequence: Sequence, key: bytes) -> None:
        sequence.parked = key
        self._parked.setdefault(key, set()).add(sequence)

    def unpark(self, sequence: Sequence) -> None:
        """A parked sequence has ended."""
        assert sequence.parked is not None
        waiters = self._parked[sequence.parked]
        waiters.remove(sequence)
        if not waiters:
            del self._parked[sequence.parked]
        sequence.parked = None

    def check_integrity(self) -> None:
        for key, owner in self._owners.items():
            if owner.state is not State.RUNNING or key not in {owner.chain.links[i].key for i in owner.claimed}:
                raise PenstockError(f"sequence {owner.id} ({owner.state.name}) claims a block it will not compute")
        for key, waiters in self._parked.items():
            if key not in self._owners or not waiters:
                raise PenstockError("a sequence is parked for a block that no sequence computes")
            if any(waiter.parked != key or waiter.state is not State.WAITING for waiter in waiters):
                raise PenstockError("a parked sequence does not know what it is parked for")
