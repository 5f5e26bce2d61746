"""What people may look at of a running engine. Made when somebody asks, between two steps; nothing here mutates."""

from __future__ import annotations

from typing import Any

from penstock.cache import census
from penstock.cache.explain import explain
from penstock.flow import record
from penstock.flow.record import Finding
from penstock.schedule.planner import Planner
from penstock.schedule.roster import Roster


class Views:
    def __init__(self, roster: Roster, planner: Planner) -> None:
        self._roster = roster
        self._planner = planner

    def page_map(self) -> dict[str, Any]:
        """Who has which KV blocks, and how full they are."""
        cache, running = self._roster.cache, list(self._roster.running)
        owners = {sequence.message.number: sequence.table.blocks for sequence in running if sequence.table is not None}
        size = cache.block_size
        sequences = {
            sequence.message.number: {
                "id": sequence.id,
                "blocks": sum(map(bool, sequence.table.blocks[0])),
                "tokens": sequence.computed,
                "waste_tokens": max(0, len(sequence.table.blocks[0]) * size - sequence.computed),
            }
            for sequence in running
            if sequence.table is not None
        }
        return {
            "block_size": size,
            "prefix_caching": cache.prefix_caching,
            "groups": census.page_map(cache, owners),
            "sequences": sequences,
            "evictions": census.evictions(cache),
            "prompt_tokens": self._planner.prompt_tokens,
            "hit_tokens": self._planner.prefix_hit_tokens,
        }

    def prefix_tree(self, limit: int, numbers: list[int]) -> dict[str, Any]:
        """Of what is cached and lately was; the nodes of the sequences with these numbers are marked, if they run."""
        wanted = set(numbers)
        own = [
            link.key
            for sequence in self._roster.sequences.values()
            if sequence.message.number in wanted
            for link in sequence.chain.links
        ]
        return census.tree(self._roster.cache, own, limit)

    def explain(self, tenant: str, tokens: list[int], salt: str) -> dict[str, Any]:
        """What of these tokens is cached for this tenant now, and why no more."""
        cache = self._roster.cache
        chain = cache.chain(tenant, salt)
        hit = cache.match(chain, tokens)
        finding = Finding(record.OFF)
        if cache.recall is not None:
            finding = explain(chain, tokens, hit.tokens, cache.recall, self._roster.kin)
        return {"cached": hit.tokens, "block_size": cache.block_size, "finding": list(finding)}
