"""What the cache holds and lately held, by what comes before it: enough to say where a prompt left a known path.

Entries are full blocks that can be found now, *ghosts* of those that were evicted, and the last, partial blocks of
sequences that ended. Ghosts and partial blocks are bounded; the oldest go first. Keys depend on the salt from the root
on, so no path leads from one tenant's entries to another's.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from penstock.cache.prefix import Chain, Link, digest, pack_tokens
from penstock.errors import PenstockError

GHOSTS = 4096  # blocks that are remembered after they are gone
RECENT = 64  # evictions told one by one


class Ghost(NamedTuple):
    link: Link
    since: float
    hits: int  # how often it was found while it was there
    evicted: bool  # else it is the partial block of a sequence that ended


class Recall:
    def __init__(self, clock: Callable[[], float] = time.monotonic, limit: int = GHOSTS) -> None:
        self.clock = clock
        self.evictions = 0
        self.recent: deque[Ghost] = deque(maxlen=RECENT)  # evictions, oldest first
        self._limit = limit
        self._ghosts: OrderedDict[bytes, Ghost] = OrderedDict()  # oldest first
        self._children: dict[bytes, dict[bytes, Link]] = {}  # parent -> key -> link, of all entries

    # --- questions

    def __len__(self) -> int:
        """How many blocks are remembered that were evicted."""
        return sum(ghost.evicted for ghost in self._ghosts.values())

    def knows(self, link: Link) -> bool:
        """Whether this block is cached, or was."""
        ghost = self._ghosts.get(link.key)
        return ghost.evicted if ghost is not None else link.key in self._children.get(link.parent, ())

    def ghost(self, key: bytes) -> Ghost | None:
        return self._ghosts.get(key)

    def children(self, parent: bytes) -> Iterable[Link]:
        return self._children.get(parent, {}).values()

    def ghosts(self) -> Iterable[Ghost]:
        return self._ghosts.values()

    # --- changes; the pool reports its own

    def published(self, link: Link) -> None:
        self._ghosts.pop(link.key, None)
        self._children.setdefault(link.parent, {})[link.key] = link

    def evicted(self, link: Link, hits: int) -> None:
        self.evictions += 1
        ghost = Ghost(link, self.clock(), hits, evicted=True)
        self.recent.append(ghost)
        self._keep(ghost)

    def withdrawn(self, link: Link) -> None:
        """It should not have been cached: nobody is told of it."""
        self._drop(link)

    def ended(self, chain: Chain, tokens: list[int], settled: int) -> None:
        """A sequence has gone. The tokens behind its last full block were never cached, but are worth knowing of."""
        size = chain.block_size
        full = settled // size
        partial = tokens[full * size : (full + 1) * size]
        if full > len(chain.links) or not partial:
            return
        parent = chain.links[full - 1].key if full else chain.root
        packed = pack_tokens(partial)
        link = Link(digest(parent, packed), parent, packed)
        if link.key not in self._children.get(parent, {}):
            self._children.setdefault(parent, {})[link.key] = link
            self._keep(Ghost(link, self.clock(), 0, evicted=False))

    def check_integrity(self, published: Mapping[bytes, Link]) -> None:
        """Raise unless the entries are what can be found, and what is remembered."""
        known = {key for siblings in self._children.values() for key in siblings}
        if known != published.keys() | self._ghosts.keys() or published.keys() & self._ghosts.keys():
            raise PenstockError("what is recalled is not what is cached or was")
        if len(self._ghosts) > self._limit:
            raise PenstockError(f"{len(self._ghosts)} blocks are remembered, {self._limit} are the most")

    def _keep(self, ghost: Ghost) -> None:
        self._ghosts[ghost.link.key] = ghost
        if len(self._ghosts) > self._limit:
            _, oldest = self._ghosts.popitem(last=False)
            self._drop(oldest.link)

    def _drop(self, link: Link) -> None:
        siblings = self._children.get(link.parent)
        if siblings is not None and siblings.pop(link.key, None) is not None and not siblings:
            del self._children[link.parent]
