"""What people may look at of a running engine. Made when somebody asks, between two steps; nothing here mutates."""

from __future__ import annotations

from typing import Any

from penstock.cache import snapshot
from penstock.cache.explain import explain
from penstock.flow import record
from penstock.flow.record import Finding
from penstock.schedule.planner import Planner
from penstock.schedule.queues import Roster


class Views:
    def __init__(self, roster: Roster, planner: Planner) -> None:
        self._roster = roster
        self._planner = planner

    def page_map(self, tenant: str) -> dict[str, Any]:
        """Which KV blocks are in which state, and how full they are. Those of the tenant's sequences are named; of the
        others' there are counts."""
        cache, size = self._roster.cache, self._roster.cache.block_size
        owners, sequences, held, waste = [], {}, 0, 0
        for sequence in self._roster.running:
            if sequence.table is None:
                continue
            own = sequence.message.tenant == tenant
            owners.append((sequence.message.number if own else 0, sequence.table.blocks))
            blocks = sum(map(bool, sequence.table.blocks[0]))
            unused = max(0, len(sequence.table.blocks[0]) * size - sequence.computed)
            held, waste = held + blocks, waste + unused
            if own:
                sequences[sequence.message.number] = {
                    "id": sequence.id,
                    "blocks": blocks,
                    "tokens": sequence.computed,
                    "waste_tokens": unused,
                }
        return {
            "block_size": size,
            "prefix_caching": cache.prefix_caching,
            "groups": snapshot.page_map(cache, owners),
            "sequences": sequences,
            "held_blocks": held,
            "waste_tokens": waste,
            "evictions": snapshot.evictions(cache, tenant),
            "prompt_tokens": self._planner.prompt_tokens,
            "hit_tokens": self._planner.prefix_hit_tokens,
        }

    def prefix_tree(self, tenant: str, limit: int, numbers: list[int]) -> dict[str, Any]:
        """Of what is cached for the tenant and lately was; the nodes of its sequences with these numbers are marked, if
        they run."""
        wanted = set(numbers)
        own = [
            link.key
            for sequence in self._roster.sequences.values()
            if sequence.message.number in wanted and sequence.message.tenant == tenant
            for link in sequence.chain.links
        ]
        return snapshot.tree(self._roster.cache, tenant, own, limit)

    def explain(self, tenant: str, tokens: list[int], salt: str) -> dict[str, Any]:
        """What of these tokens is cached for this tenant now, and why no more."""
        cache = self._roster.cache
        chain = cache.chain(tenant, salt)
        hit = cache.match(chain, tokens)
        finding = Finding(record.OFF)
        if cache.recall is not None:
            finding = explain(chain, tokens, hit.tokens, cache.recall, self._roster.kin)
        return {"cached": hit.tokens, "block_size": cache.block_size, "finding": list(finding)}
