"""What the cache holds and lately held, by parent: enough to name the token at which a prompt diverged from a prefix.

Entries are the published blocks, *ghosts* of evicted ones, and the last, partial blocks of sequences that ended. Ghosts
and partial blocks are bounded; the oldest are dropped first. Keys depend on tenant and salt from the root on, so no
path leads from one tenant's entries to another's.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import NamedTuple

from penstock.cache.prefix_chain import ChainLink, PrefixChain
from penstock.errors import PenstockError
from penstock.flow.prefix import block_key, pack_tokens

GHOSTS = 4096  # blocks that are remembered after their eviction
RECENT = 64  # evictions that are listed one by one

_packed = attrgetter("packed")


class Ghost(NamedTuple):
    """A block that is not in the prefix index any more, or never was."""

    link: ChainLink
    since: float  # when it was evicted, or its sequence ended
    hits: int  # how often it was found while it was cached
    evicted: bool  # else it is the partial block of a sequence that ended


class EvictionHistory:
    def __init__(self, clock: Callable[[], float] = time.monotonic, limit: int = GHOSTS) -> None:
        self.clock = clock
        self.evictions = 0
        self.recent: deque[Ghost] = deque(maxlen=RECENT)  # evictions, oldest first
        self._limit = limit
        self._ghosts: OrderedDict[bytes, Ghost] = OrderedDict()  # oldest first
        self._children: dict[bytes, list[ChainLink]] = {}  # by parent, in the order of their packed tokens: all entries

    # --- reads

    def __len__(self) -> int:
        """How many evicted blocks are remembered."""
        return sum(ghost.evicted for ghost in self._ghosts.values())

    def knows(self, link: ChainLink) -> bool:
        """Whether this block is cached, or was lately."""
        ghost = self._ghosts.get(link.key)
        return ghost.evicted if ghost is not None else self._find(link)[1]

    def ghost(self, key: bytes) -> Ghost | None:
        return self._ghosts.get(key)

    def neighbours(self, parent: bytes, packed: bytes) -> list[ChainLink]:
        """The entries behind `parent` that sort next to `packed`: no other shares a longer prefix with it."""
        siblings = self._children.get(parent, [])
        at = bisect_left(siblings, packed, key=_packed)
        return siblings[max(0, at - 1) : at + 1]

    def ghosts(self) -> Iterable[Ghost]:
        return self._ghosts.values()

    # --- changes, which the pool reports

    def publish(self, link: ChainLink) -> None:
        self._ghosts.pop(link.key, None)
        self._add(link)

    def evict(self, link: ChainLink, hits: int) -> None:
        self.evictions += 1
        ghost = Ghost(link, self.clock(), hits, evicted=True)
        self.recent.append(ghost)
        self._keep(ghost)

    def withdraw(self, link: ChainLink) -> None:
        """It should not have been cached: it leaves no ghost."""
        self._drop(link)

    def end_sequence(self, chain: PrefixChain, tokens: list[int], settled: int) -> None:
        """Keep the tokens behind the last full block of an ended sequence, which are never cached."""
        size = chain.block_size
        full = settled // size
        partial = tokens[full * size : (full + 1) * size]
        if full > len(chain.links) or not partial:
            return
        parent = chain.parent_of(full)
        packed = pack_tokens(partial)
        link = ChainLink(block_key(parent, packed), parent, packed, chain.tenant)
        if self._add(link):
            self._keep(Ghost(link, self.clock(), 0, evicted=False))

    def check_integrity(self, published: Mapping[bytes, ChainLink]) -> None:
        """Raise unless the entries are exactly the published blocks and the ghosts."""
        known = {link.key for siblings in self._children.values() for link in siblings}
        if known != published.keys() | self._ghosts.keys() or published.keys() & self._ghosts.keys():
            raise PenstockError("the eviction history disagrees with the prefix index")
        if len(self._ghosts) > self._limit:
            raise PenstockError(f"{len(self._ghosts)} blocks are remembered, the limit is {self._limit}")

    def _find(self, link: ChainLink) -> tuple[int, bool]:
        """Its place among its siblings, and whether it is there. With one parent, equal tokens are the same entry."""
        siblings = self._children.get(link.parent, [])
        at = bisect_left(siblings, link.packed, key=_packed)
        return at, at < len(siblings) and siblings[at].packed == link.packed

    def _add(self, link: ChainLink) -> bool:
        at, is_there = self._find(link)
        if not is_there:
            self._children.setdefault(link.parent, []).insert(at, link)
        return not is_there

    def _keep(self, ghost: Ghost) -> None:
        self._ghosts[ghost.link.key] = ghost
        if len(self._ghosts) > self._limit:
            _, oldest = self._ghosts.popitem(last=False)
            self._drop(oldest.link)

    def _drop(self, link: ChainLink) -> None:
        at, is_there = self._find(link)
        if is_there:
            siblings = self._children[link.parent]
            del siblings[at]
            if not siblings:
                del self._children[link.parent]
