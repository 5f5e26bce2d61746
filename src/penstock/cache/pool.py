"""The blocks of one cache group. A block is always in exactly one of four states:

    held     by one or more sequences (reference count > 0)
    resting  given up by its last holder while steps are in flight that may still touch it: nobody may write to it yet
    cached   held by nobody, but full and known by its key: may be held again, or evicted, least recently used first
    free     held by nobody and worth nothing

               take                 drop                 retire
    free ─────────────────► held ─────────────► resting ─────────► cached (published) or free
    cached ── take (evict) ──┘ ▲                   │ │
       └────── hold (hit) ─────┴─── hold (hit) ────┘ └ (straight through when nothing is in flight)

A published block is full and never written again, so a hit may hold it even while it rests: reading is safe at once.
Block 0 belongs to nobody: it pads block tables, and padding may write there. Every operation is O(1) per block; those
of a sequence's life take all its blocks at once, since a long prompt has hundreds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, takewhile
from typing import NamedTuple

from penstock.cache.eviction_history import Recall
from penstock.cache.prefix import Link
from penstock.errors import PenstockError
from penstock.flow.prefix import block_key


class Usage(NamedTuple):
    """How many blocks of a pool are in which state; `total` is their sum. `shared` are those held more than once."""

    total: int
    held: int
    resting: int
    cached: int
    free: int
    shared: int = 0


class Pool:
    def __init__(self, num_blocks: int, recall: Recall | None = None) -> None:
        """Blocks 1 .. num_blocks - 1 are there to be used. `recall` is told what can be found and what has gone."""
        self._recall = recall
        self._references = [0] * num_blocks
        self._hits = [0] * num_blocks  # of published blocks: how often they were found
        self._shared = 0
        self._links: list[Link | None] = [None] * num_blocks  # of published blocks
        self._index: dict[bytes, int] = {}  # key -> published block
        self._free = list(range(num_blocks - 1, 0, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._resting: OrderedDict[int, int] = OrderedDict()  # block -> the step it rests for, ascending
        self._retired = 0  # the last step known to be over
        self.freed = 0  # how many times a block has become available

    # --- questions; nothing here mutates

    @property
    def available(self) -> int:
        """How many blocks `take` can give now."""
        return len(self._free) + len(self._cached)

    @property
    def resting(self) -> int:
        return len(self._resting)

    def find(self, key: bytes) -> int | None:
        return self._index.get(key)

    def find_leading(self, links: Iterable[Link]) -> list[int]:
        """The blocks of these links, up to the first that cannot be found."""
        found = []
        for link in links:
            block = self._index.get(link.key)
            if block is None:
                break
            found.append(block)
        return found

    def references(self, block: int) -> int:
        return self._references[block]

    def is_published(self, block: int) -> bool:
        return self._links[block] is not None

    def count_cached(self, blocks: Iterable[int]) -> int:
        """How many of these `available` would lose if they were held."""
        return sum(map(self._cached.__contains__, blocks))

    def usage(self) -> Usage:
        total = len(self._references) - 1
        idle = len(self._resting) + len(self._cached) + len(self._free)
        return Usage(total, total - idle, len(self._resting), len(self._cached), len(self._free), self._shared)

    def link(self, block: int) -> Link | None:
        return self._links[block]

    def hits(self, block: int) -> int:
        return self._hits[block]

    def published(self) -> Iterator[tuple[int, Link]]:
        """Blocks that can be found: those held first, then the idle ones, most recently used first."""
        idle = [*reversed(self._resting), *reversed(self._cached)]
        held = (block for block in self._index.values() if self._references[block])
        for block in chain(held, idle):
            if (link := self._links[block]) is not None:
                yield block, link

    def idle(self) -> tuple[list[int], list[int]]:
        """The cached blocks and the resting ones."""
        return list(self._cached), list(self._resting)

    # --- changes

    def take(self, count: int) -> list[int]:
        """Blocks to write to, held once. Evicts the least recently used cached ones when no others are left."""
        taken = []
        for _ in range(count):
            block = self._free.pop() if self._free else self._evict()
            self._references[block] = 1
            taken.append(block)
        return taken

    def hold(self, blocks: Iterable[int]) -> None:
        """One more holder of these published blocks."""
        references, hits = self._references, self._hits
        for block in blocks:
            holders = references[block]
            if holders == 0:
                self._cached.pop(block, None)
                self._resting.pop(block, None)
            elif holders == 1:
                self._shared += 1
            references[block] = holders + 1
            hits[block] += 1

    def drop(self, blocks: Iterable[int], step: int) -> None:
        """One holder less. The last one leaves a block resting until `step`, the newest one planned, has retired."""
        references, rests = self._references, step > self._retired
        for block in blocks:
            holders = references[block] = references[block] - 1
            if holders == 1:
                self._shared -= 1
            elif holders == 0:
                if rests:
                    self._resting[block] = step
                else:
                    self._lay_down(block)

    def retire(self, step: int) -> None:
        """Step `step` and all before it are over: what rested for them may be written to again."""
        self._retired = step
        for block in list(takewhile(lambda block: self._resting[block] <= step, self._resting)):
            del self._resting[block]
            self._lay_down(block)

    def publish(self, block: int, link: Link) -> None:
        """Let a held, full, final block be found by its key. The first block of a key keeps it."""
        if self._index.setdefault(link.key, block) == block:
            self._links[block] = link
            if self._recall is not None:
                self._recall.published(link)

    def unpublish(self, block: int) -> None:
        """The opposite: the block ends as free, at once or when its holders drop it."""
        link, _ = self._withdraw(block)
        if self._recall is not None:
            self._recall.withdrawn(link)
        if block in self._cached:
            del self._cached[block]
            self._free.append(block)

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        link, hits = self._withdraw(block)
        if self._recall is not None:
            self._recall.evicted(link, hits)
        return block

    def _lay_down(self, block: int) -> None:
        self.freed += 1
        if self._links[block] is None:
            self._free.append(block)
        else:
            self._cached[block] = None

    def _withdraw(self, block: int) -> tuple[Link, int]:
        """It cannot be found any more; gives its link and how often it was."""
        link, hits = self._links[block], self._hits[block]
        assert link is not None, f"block {block} is not published"
        self._links[block], self._hits[block] = None, 0
        del self._index[link.key]
        return link, hits

    # --- proof

    def check_integrity(self, holders: Mapping[int, int]) -> None:
        """Raise if anything disagrees with itself or with `holders`: how many tables name each block."""
        blocks = range(1, len(self._references))
        for block in blocks:
            references, expected = self._references[block], holders.get(block, 0)
            if references != expected:
                raise PenstockError(f"block {block} has {references} references, but {expected} tables hold it")
            states = (references > 0) + (block in self._resting) + (block in self._cached)
            if states > 1:
                raise PenstockError(f"block {block} is in {states} states at once")
        shared = sum(count > 1 for count in self._references)
        if shared != self._shared:
            raise PenstockError(f"{shared} blocks are shared, the pool counts {self._shared}")
        idle = [*self._free, *self._resting, *self._cached]
        expected_idle = [block for block in blocks if not self._references[block]]
        if sorted(idle) != expected_idle:
            raise PenstockError(f"blocks without a holder are {expected_idle}, the pool lists {sorted(idle)}")
        if list(self._resting.values()) != sorted(self._resting.values()):
            raise PenstockError("resting blocks are out of order")
        if any(step <= self._retired for step in self._resting.values()):
            raise PenstockError(f"a block still rests for a step that retired before {self._retired}")
        self._check_index()

    def _check_index(self) -> None:
        published = {block: link for block, link in enumerate(self._links) if link is not None}
        free = set(self._free)
        if {link.key: block for block, link in published.items()} != self._index or len(published) != len(self._index):
            raise PenstockError("the index and the blocks' own keys disagree")
        for block, link in published.items():
            if block_key(link.parent, link.packed) != link.key:
                raise PenstockError(f"the key of block {block} is not the hash of its tokens")
            if block in free:
                raise PenstockError(f"block {block} is free but can be found by its key")
        for block in self._cached:
            if block not in published:
                raise PenstockError(f"block {block} is cached but has no key")
        if self._recall is not None:
            self._recall.check_integrity({link.key: link for link in published.values()})
