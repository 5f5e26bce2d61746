"""The blocks of one cache group. A block is always in exactly one of four states:

    held     by one or more sequences (reference count > 0)
    resting  released by its last holder while steps in flight may still touch it: it must not be written to yet
    cached   without a holder, but full and in the prefix index: may be acquired again, or evicted, least recently used
             first
    free     without a holder and without content

               allocate               release               retire
    free ───────────────────► held ─────────────► resting ─────────► cached (published) or free
    cached ─ allocate (evict) ─┘ ▲                   │ │
       └────── acquire (hit) ────┴── acquire (hit) ──┘ └ (straight through when nothing is in flight)

A published block is full and never written again, so a hit may acquire it even while it rests: reading is safe at once.
Block 0 has no owner: it pads block tables, and padding may write there. Every operation is O(1) per block; those that
concern a whole sequence take all of its blocks at once, since a long prompt has hundreds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, takewhile
from typing import NamedTuple

from penstock.cache.eviction_history import EvictionHistory
from penstock.cache.kv_events import KvEventLog
from penstock.cache.prefix_chain import ChainLink
from penstock.cache.prefix_index import PrefixIndex
from penstock.errors import PenstockError


class Usage(NamedTuple):
    """Blocks of a pool by state; `total` is their sum. `shared` are those with more than one holder."""

    total: int
    held: int
    resting: int
    cached: int
    free: int
    shared: int = 0


class Pool:
    def __init__(
        self, num_blocks: int, history: EvictionHistory | None = None, events: KvEventLog | None = None
    ) -> None:
        """Blocks 1 .. num_blocks - 1 can be allocated. `history` and `events` follow what is published and evicted."""
        self._history = history
        self._events = events
        self._references = [0] * num_blocks
        self._hits = [0] * num_blocks  # of published blocks: how often they were acquired
        self._shared = 0
        self._index = PrefixIndex(num_blocks)  # of published blocks
        self._free = list(range(num_blocks - 1, 0, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._resting: OrderedDict[int, int] = OrderedDict()  # block -> the step it rests for, ascending
        self._retired = 0  # the last step known to be over
        self.freed = 0  # how many times a block has become available

    # --- reads

    @property
    def available(self) -> int:
        """How many blocks `allocate` can return now."""
        return len(self._free) + len(self._cached)

    @property
    def resting(self) -> int:
        return len(self._resting)

    def find(self, key: bytes) -> int | None:
        return self._index.find(key)

    def find_leading(self, links: Iterable[ChainLink]) -> list[int]:
        """The blocks of these links, up to the first that is not published."""
        return self._index.find_leading(links)

    def references(self, block: int) -> int:
        return self._references[block]

    def is_published(self, block: int) -> bool:
        return self._index.link(block) is not None

    def count_cached(self, blocks: Iterable[int]) -> int:
        """How many of these `available` would lose if they were acquired."""
        return sum(map(self._cached.__contains__, blocks))

    def usage(self) -> Usage:
        total = len(self._references) - 1
        idle = len(self._resting) + len(self._cached) + len(self._free)
        return Usage(total, total - idle, len(self._resting), len(self._cached), len(self._free), self._shared)

    def link(self, block: int) -> ChainLink | None:
        return self._index.link(block)

    def hits(self, block: int) -> int:
        return self._hits[block]

    def published_blocks(self) -> Iterator[tuple[int, ChainLink]]:
        """All published blocks: those held first, then the idle ones, most recently used first."""
        idle = [*reversed(self._resting), *reversed(self._cached)]
        held = (block for block in self._index.blocks() if self._references[block])
        for block in chain(held, idle):
            if (link := self._index.link(block)) is not None:
                yield block, link

    def idle(self) -> tuple[list[int], list[int]]:
        """The cached blocks and the resting ones."""
        return list(self._cached), list(self._resting)

    # --- changes

    def allocate(self, count: int) -> list[int]:
        """Blocks to write to, with one holder. Evicts the least recently used cached ones when none is free."""
        allocated = []
        for _ in range(count):
            block = self._free.pop() if self._free else self.evict()
            self._references[block] = 1
            allocated.append(block)
        return allocated

    def acquire(self, blocks: Iterable[int]) -> None:
        """Add a holder to these published blocks."""
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

    def release(self, blocks: Iterable[int], step: int) -> None:
        """Remove a holder. Without holders a block rests until `step`, the newest planned one, has retired."""
        references, rests = self._references, step > self._retired
        for block in blocks:
            holders = references[block] = references[block] - 1
            if holders == 1:
                self._shared -= 1
            elif holders == 0:
                if rests:
                    self._resting[block] = step
                else:
                    self._make_available(block)

    def retire(self, step: int) -> None:
        """Step `step` and all before it have ended: blocks that rested for them may be written to again."""
        self._retired = step
        for block in list(takewhile(lambda block: self._resting[block] <= step, self._resting)):
            del self._resting[block]
            self._make_available(block)

    def publish(self, block: int, link: ChainLink, *, first: bool = False) -> None:
        """Put a held, full, final block into the index. The first block of a key keeps it. `first`: of its chain."""
        if self._index.add(block, link):
            if self._history is not None:
                self._history.publish(link)
            if self._events is not None:
                self._events.store(link, first=first)

    def unpublish(self, block: int) -> None:
        """The opposite of `publish`: the block becomes free, at once or when its holders release it."""
        link, _ = self._withdraw(block)
        if self._history is not None:
            self._history.withdraw(link)
        if self._events is not None:
            self._events.remove(link)
        if block in self._cached:
            del self._cached[block]
            self._free.append(block)

    def evict(self) -> int:
        """Take the least recently used cached block out of the index, for another use."""
        block, _ = self._cached.popitem(last=False)
        link, hits = self._withdraw(block)
        if self._history is not None:
            self._history.evict(link, hits)
        if self._events is not None:
            self._events.remove(link)
        return block

    def clear(self) -> None:
        """Evict all cached blocks: their content is lost."""
        while self._cached:
            self._free.append(self.evict())
        if self._events is not None:
            self._events.clear()

    def _make_available(self, block: int) -> None:
        self.freed += 1
        if self._index.link(block) is None:
            self._free.append(block)
        else:
            self._cached[block] = None

    def _withdraw(self, block: int) -> tuple[ChainLink, int]:
        """Take it out of the index; returns its link and how often it was found."""
        hits, self._hits[block] = self._hits[block], 0
        return self._index.remove(block), hits

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
        published = self._index.check_integrity()
        free = set(self._free)
        for block in published:
            if block in free:
                raise PenstockError(f"block {block} is free but can be found by its key")
        for block in self._cached:
            if block not in published:
                raise PenstockError(f"block {block} is cached but has no key")
        if self._history is not None:
            self._history.check_integrity({link.key: link for link in published.values()})
