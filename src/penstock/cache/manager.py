"""The KV cache as the scheduler sees it: one block table per sequence, over one pool per cache group.

    lookup_prefix ─► allocate ─► (extend ─► advance)* ─► [uncache] ─► release

Why a write never hits a shared block, and copy-on-write is never needed: only full blocks whose keys and values are
final are published (`advance`), only published blocks are shared (`lookup_prefix`, `allocate`), and a hit always leaves
at least the last known token to be computed, so the first position written lies behind every shared block, in a block
of the sequence's own. `check_integrity` verifies it for every table.

Blocks released while steps are in flight rest until those have retired (see `pool`); the scheduler reports steps with
`begin_step` and `retire`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.cache.eviction_history import EvictionHistory
from penstock.cache.holding import Holding
from penstock.cache.kv_events import KvEventLog
from penstock.cache.pool import Pool, Usage
from penstock.cache.prefix_chain import ChainLink, PrefixChain
from penstock.errors import PenstockError
from penstock.flow import Adapter
from penstock.flow.prefix import draw_secret, root_key
from penstock.store.spec import CacheGroup


class PrefixHit(NamedTuple):
    """The cached prefix that a sequence may start from. Valid until the cache next changes."""

    tokens: int  # leading tokens that need not be computed; whole blocks
    blocks: list[list[int]]  # [groups][tokens / block_size]; 0 where the group's window has passed


@dataclass(slots=True, eq=False)
class BlockTable:
    """The blocks of one sequence, from `allocate` to `release`. Written by the manager only."""

    blocks: list[list[int]]  # [groups][blocks] by position // block_size; 0 where the group's window has passed
    first: list[int]  # [groups] index of the first block still held
    capacity: int  # tokens that every group has blocks for
    settled: int  # leading tokens whose keys and values are final, as of the last `advance`
    due: int  # `advance` has nothing to do before this many tokens are settled


class CacheManager:
    def __init__(
        self,
        groups: Sequence[CacheGroup],
        num_blocks: Sequence[int],
        block_size: int,
        prefix_caching: bool,
        history: EvictionHistory | None = None,
        secret: bytes | None = None,
        events: KvEventLog | None = None,
    ) -> None:
        """`num_blocks` counts block 0 of each group, which is never allocated. `history` follows the first group, whose
        attention reaches furthest, and is what explanations are made of. `secret` is the server's (`flow.prefix`); None
        draws one, for an engine that shares keys with no other. `events` follow the first group, too."""
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self._cache_groups = groups
        self.windows = [group.window for group in groups]
        self.history = history if prefix_caching else None
        self._pools = [
            Pool(count, None if index else self.history, None if index else events)
            for index, count in enumerate(num_blocks)
        ]
        self._groups = list(zip(self.windows, self._pools, strict=True))
        self._tables: dict[BlockTable, None] = {}  # for check_integrity
        self._holdings: dict[Holding, None] = {}  # the same
        self._holdable = [0] * len(num_blocks)  # blocks of each group that they may have together
        self._planned = 0
        self._secret = secret or draw_secret()

    # --- reads

    def chain(self, tenant: str, salt: str, adapter: Adapter | None = None) -> PrefixChain:
        """An empty chain for a new sequence."""
        return PrefixChain(root_key(self._secret, tenant, salt, adapter), self.block_size, tenant)

    def lookup_prefix(self, chain: PrefixChain, tokens: Sequence[int]) -> PrefixHit:
        """Prefix lookup: how many of the leading `tokens` are cached in all groups. Grows the chain to all full blocks.

        A group with full attention needs every block from the first; one with a window only those that the first
        computed token attends to. The last token is never part of a hit: its logits are needed.
        """
        if not self.prefix_caching:
            return self.no_hit()
        chain.grow(tokens, len(tokens) // self.block_size)
        links = chain.links[: (len(tokens) - 1) // self.block_size]
        full = {}  # blocks, by group with full attention
        for group, (window, pool) in enumerate(self._groups):
            if not window:
                full[group] = pool.find_leading(links)
                del links[len(full[group]) :]
        bound = self._common_bound(links)
        blocks = []
        for group, (window, pool) in enumerate(self._groups):
            first = self._first(window, bound * self.block_size)
            found = full[group][:bound] if group in full else pool.find_leading(links[first:bound])
            assert len(found) == bound - first, "a hit reaches beyond what is cached"
            blocks.append([0] * first + found)
        return PrefixHit(bound * self.block_size, blocks)

    def no_hit(self) -> PrefixHit:
        """For a sequence that starts at position 0."""
        return PrefixHit(0, [[] for _ in self._pools])

    def will_fit(self, table: BlockTable, tokens: int, position: int) -> bool:
        """Whether `extend` can succeed once no step is in flight and the table has advanced to `position`."""
        blocks = self._blocks(tokens)
        return all(
            blocks - len(held) <= pool.available + pool.resting + max(0, self._first(window, position) - first)
            for (window, pool), held, first in zip(self._groups, table.blocks, table.first, strict=True)
        )

    def required_blocks(self, context: int, step_tokens: int) -> list[int]:
        """`CacheGroup.most_blocks` of each group."""
        return [group.most_blocks(context, step_tokens, self.block_size) for group in self._cache_groups]

    @property
    def freed(self) -> int:
        """Grows whenever a block becomes available: until then a failed `allocate` need not be retried."""
        return sum(pool.freed for pool in self._pools)

    def usage(self) -> list[Usage]:
        return [pool.usage() for pool in self._pools]

    @property
    def pools(self) -> Sequence[Pool]:
        """For reads only."""
        return self._pools

    # --- changes of a table

    def allocate(self, hit: PrefixHit, tokens: int, ahead: int, reserve: int) -> BlockTable | None:
        """A table that starts from `hit`, whose lists it takes over; None, and no change, if there are too few blocks.

        Groups with full attention get blocks for all of `tokens` at once, so that a prefill that begins can finish;
        those with a window, whose blocks come and go, for the first `ahead`. `reserve` blocks must be left in each.
        """
        targets = [self._blocks(min(tokens, ahead) if window else tokens) for window in self.windows]
        for pool, target, found in zip(self._pools, targets, hit.blocks, strict=True):
            if target - len(found) + pool.count_cached(found) + reserve > pool.available:
                return None
        for pool, target, found in zip(self._pools, targets, hit.blocks, strict=True):
            pool.acquire(filter(None, found))
            found.extend(pool.allocate(target - len(found)))
        first = [self._first(window, hit.tokens) for window in self.windows]
        table = BlockTable(hit.blocks, first, 0, hit.tokens, 0)
        self._update_bounds(table)
        self._tables[table] = None
        return table

    def extend(self, table: BlockTable, tokens: int) -> list[list[int]] | None:
        """Allocate blocks for `tokens` in all groups; returns the new ones; None and no change if too few."""
        blocks = self._blocks(tokens)
        counts = [max(0, blocks - len(held)) for held in table.blocks]
        if any(count > pool.available for count, pool in zip(counts, self._pools, strict=True)):
            return None
        added = [pool.allocate(count) for count, pool in zip(counts, self._pools, strict=True)]
        for held, new in zip(table.blocks, added, strict=True):
            held.extend(new)
        self._update_bounds(table)
        return added

    def advance(self, table: BlockTable, chain: PrefixChain, tokens: Sequence[int], settled: int) -> None:
        """The first `settled` of `tokens` are final: publish the blocks they fill, release those behind the window."""
        full = settled // self.block_size
        if self.prefix_caching:
            chain.grow(tokens, full)
            for index in range(table.settled // self.block_size, full):
                for held, pool in zip(table.blocks, self._pools, strict=True):
                    pool.publish(held[index], chain.links[index], first=index == 0)
        table.settled = settled
        for group, (window, pool) in enumerate(self._groups):
            held, begin, end = table.blocks[group], table.first[group], self._first(window, settled)
            if begin < end:
                pool.release(held[begin:end], self._planned)
                held[begin:end] = [0] * (end - begin)
                table.first[group] = end
        self._update_bounds(table)

    def uncache(self, table: BlockTable | None, chain: PrefixChain, keep: int) -> None:
        """Remove what is cached of a sequence beyond its first `keep` tokens. `table` is None when it holds no blocks.

        A block that another sequence holds stays: it is part of that one too. One without holders is removed, whichever
        sequence computed it: it may be this one's own, released behind the window or at a preemption.
        """
        for index in range(keep // self.block_size, len(chain.links)):
            for group, pool in enumerate(self._pools):
                block = pool.find(chain.links[index].key)
                if block is None:
                    continue
                held = table is not None and block in table.blocks[group][index : index + 1]
                if pool.references(block) == held:
                    pool.unpublish(block)

    def release(self, table: BlockTable) -> None:
        """Release all blocks of a table, the last ones first, so that shared leading blocks are evicted last."""
        for held, pool in zip(table.blocks, self._pools, strict=True):
            pool.release(filter(None, reversed(held)), self._planned)
        del self._tables[table]

    def clear(self) -> None:
        """Evict all cached blocks. No sequence may hold blocks."""
        assert not self._tables
        assert not self._holdings
        for pool in self._pools:
            pool.clear()

    # --- blocks on their way from or to another engine

    def allow_holdings(self, context: int, step_tokens: int) -> int:
        """Let `hold_cached` and `hold_missing` hold all blocks but those that one sequence of `context` tokens needs:
        it must find them whenever all others are preempted. Returns how many tokens of one prompt may be held in full
        blocks while nothing else is; of a window, its end is enough."""
        required = self.required_blocks(context, step_tokens)
        self._holdable = [max(0, usage.total - count) for usage, count in zip(self.usage(), required, strict=True)]
        most = [count * self.block_size for count in self._holdable]
        short = [
            tokens
            for window, tokens in zip(self.windows, most, strict=True)
            if not window or tokens < window + self.block_size
        ]
        return min([context, *short])

    def hold_cached(self, chain: PrefixChain, tokens: Sequence[int]) -> Holding | None:
        """Hold the blocks that a sequence of these tokens would start from: they are neither evicted nor written. None:
        too many are held."""
        hit = self.lookup_prefix(chain, tokens)
        held = [{index: block for index, block in enumerate(blocks) if block} for blocks in hit.blocks]
        if not self._may_hold([len(blocks) for blocks in held]):
            return None
        for pool, blocks in zip(self._pools, held, strict=True):
            pool.acquire(blocks.values())
        return self._keep(Holding(held))

    def hold_missing(self, chain: PrefixChain, tokens: Sequence[int], reserve: int) -> Holding | None:
        """Allocate blocks for what a sequence of these tokens would start from if all of it were cached, and is not.
        None, and no change, if too many are held, or fewer than `reserve` would be left in a group."""
        chain.grow(tokens, len(tokens) // self.block_size)
        count = (len(tokens) - 1) // self.block_size
        missing = []
        for window, pool in self._groups:
            first = self._first(window, count * self.block_size)
            missing.append([index for index in range(first, count) if pool.find(chain.links[index].key) is None])
            if len(missing[-1]) + reserve > pool.available:
                return None
        if not self._may_hold([len(indices) for indices in missing]):
            return None
        pairs = zip(missing, self._pools, strict=True)
        return self._keep(Holding([dict(zip(some, pool.allocate(len(some)), strict=True)) for some, pool in pairs]))

    def publish_held(self, holding: Holding, chain: PrefixChain, group: int, index: int) -> None:
        """A block of `hold_missing` has its content."""
        self._pools[group].publish(holding.blocks[group][index], chain.links[index], first=index == 0)

    def release_holding(self, holding: Holding) -> None:
        """The last ones first, as `release` does."""
        for blocks, pool in zip(holding.blocks, self._pools, strict=True):
            pool.release(reversed(blocks.values()), self._planned)
        del self._holdings[holding]

    def _may_hold(self, counts: Sequence[int]) -> bool:
        return all(
            count + sum(len(one.blocks[group]) for one in self._holdings) <= most
            for group, (count, most) in enumerate(zip(counts, self._holdable, strict=True))
        )

    def _keep(self, holding: Holding) -> Holding:
        self._holdings[holding] = None
        return holding

    # --- steps

    def begin_step(self, step: int) -> None:
        """Step `step` is in flight: blocks released from now on rest until it has retired."""
        self._planned = step

    def retire(self, step: int) -> None:
        """Step `step` and all before it have ended."""
        for pool in self._pools:
            pool.retire(step)

    # --- proof

    def check_integrity(self) -> None:
        """Raise if the bookkeeping contradicts itself. Does not mutate."""
        for table in self._tables:
            self._check_table(table)
        for group, pool in enumerate(self._pools):
            holders = Counter(block for table in self._tables for block in table.blocks[group] if block)
            for holding in self._holdings:
                holders.update(holding.blocks[group].values())
            pool.check_integrity(holders)

    def _check_table(self, table: BlockTable) -> None:
        for window, pool, held, first in zip(self.windows, self._pools, table.blocks, table.first, strict=True):
            if first != self._first(window, table.settled) or any(held[:first]) or not all(held[first:]):
                raise PenstockError(f"a table settled to {table.settled} holds {held} in a window of {window}")
            for block in held[table.settled // self.block_size :]:
                if pool.references(block) > 1 or pool.is_published(block):
                    raise PenstockError(f"block {block} is yet to be written, but shared or published")

    # --- arithmetic

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _first(self, window: int, position: int) -> int:
        """Index of the first block that a query at `position` attends to."""
        return max(0, position - window + 1) // self.block_size if window else 0

    def _update_bounds(self, table: BlockTable) -> None:
        size = self.block_size
        table.capacity = min(map(len, table.blocks)) * size
        table.due = (table.settled // size + 1) * size
        for window, first in zip(self.windows, table.first, strict=True):
            if window:
                table.due = min(table.due, (first + 1) * size + window - 1)

    def _common_bound(self, links: Sequence[ChainLink]) -> int:
        """The largest number of these blocks that every group with a window can start after.

        From the end backwards: a missing block that some window reaches from `bound` lowers the bound to it.
        """
        reaches = [(self._blocks(window - 1), pool) for window, pool in self._groups if window]
        furthest = max((reach for reach, _ in reaches), default=0)
        bound = len(links)
        index = bound - 1
        while index >= max(0, bound - furthest):
            key = links[index].key
            if any(bound - index <= reach and pool.find(key) is None for reach, pool in reaches):
                bound = index
            index -= 1
        return bound
