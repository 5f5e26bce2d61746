"""Snapshots of a running engine for the debug API, made on request between two steps. Nothing here mutates."""

from __future__ import annotations

from typing import Any

from penstock.cache import snapshot
from penstock.cache.explain import explain
from penstock.flow import record
from penstock.flow.adapter import Adapter
from penstock.flow.record import Finding
from penstock.schedule.planner import Planner
from penstock.schedule.queues import SequenceQueues
from penstock.system import typed


class Views:
    def __init__(self, queues: SequenceQueues, planner: Planner) -> None:
        self._queues = queues
        self._planner = planner

    def page_map(self, tenant: str) -> dict[str, Any]:
        """The state and the fill of all KV blocks. Sequences of the tenant are named, others only counted."""
        cache, size = self._queues.cache, self._queues.cache.block_size
        owners, sequences, held, waste = [], {}, 0, 0
        for sequence in self._queues.running:
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

    def prefix_tree(self, tenant: str, limit: int, numbers: list[int], *, with_tokens: bool = False) -> dict[str, Any]:
        """What is cached for the tenant, or was lately; nodes of its sequences with these numbers are marked."""
        marked = set(numbers)
        own = [
            link.key
            for sequence in self._queues.sequences.values()
            if sequence.message.number in marked and sequence.message.tenant == tenant
            for link in sequence.chain.links
        ]
        return snapshot.tree(self._queues.cache, tenant, own, limit, with_tokens=with_tokens)

    def tenants(self) -> dict[str, Any]:
        """What each tenant was served and what it waits for, by tier; under policies other than `fair` only how many
        sequences it has. For admins."""
        queues = self._queues
        if not queues.shares.fair:
            loads = [
                {"tenant": tenant, "cost": 0, "running": load.running, "waiting": load.waiting}
                for tenant, load in queues.tenants.items()
            ]
            return {"fair": False, "tenants": loads}
        rows = []
        for share in queues.shares.snapshot():
            running = len(queues.running.of_share(share))
            rows.append(
                {
                    "tenant": share.tenant,
                    "tier": share.tier,
                    "background": share.background,
                    "weight": share.weight,
                    "counter": round(share.counter),
                    "cost": share.cost,
                    "running": running,
                    "waiting": share.open - running,
                }
            )
        return {"fair": True, "tenants": rows}

    def explain(self, tenant: str, tokens: list[int], salt: str, adapter: Any = None) -> dict[str, Any]:
        """How many of these tokens are cached for this tenant now, and why no more. `adapter` as msgpack has it."""
        cache = self._queues.cache
        chain = cache.chain(tenant, salt, typed.convert(adapter, Adapter | None))
        hit = cache.lookup_prefix(chain, tokens)
        finding = Finding(record.OFF)
        if cache.history is not None:
            finding = explain(chain, tokens, hit.tokens, cache.history, self._queues.running_prefixes)
        return {"cached": hit.tokens, "block_size": cache.block_size, "finding": list(finding)}
