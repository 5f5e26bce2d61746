"""Snapshots of the cache for the debug API: a map of its blocks, and the tree of prefixes they hold. Nothing here
mutates. Made on request between two steps: the cost grows with the blocks in use and is bounded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from penstock.cache.manager import CacheManager
from penstock.cache.pool import Pool

FREE, HELD, SHARED, CACHED, RESTING = range(5)
MAX_CELLS = 65_536  # of a map; in a larger cache a cell stands for several blocks
MAX_TREE_BLOCKS = 20_000  # of a tree
MAX_LOOKED_AT = 10 * MAX_TREE_BLOCKS  # to find them among the blocks of other tenants

# Of each sequence its number, or 0 if that must not be shown, and [groups][blocks] of its table.
Owners = Iterable[tuple[int, Sequence[Sequence[int]]]]


def page_map(cache: CacheManager, owners: Owners) -> list[dict[str, Any]]:
    """Of each group the counts, and the map as runs of [cells, state, owner] in block order; owner 0 is none, or one
    that must not be shown."""
    return [
        {
            "window": window,
            **pool.usage()._asdict(),
            **_map(pool, [(number, tables[group]) for number, tables in owners]),
        }
        for group, (window, pool) in enumerate(zip(cache.windows, cache.pools, strict=True))
    ]


def _map(pool: Pool, tables: Sequence[tuple[int, Sequence[int]]]) -> dict[str, Any]:
    total = pool.usage().total
    states = np.zeros(total + 1, np.int64)  # block 0 has no owner, and is left out below
    owner = np.zeros(total + 1, np.int64)
    cached, resting = pool.idle()
    states[np.array(cached, np.int64)] = CACHED
    states[np.array(resting, np.int64)] = RESTING
    for number, table in tables:
        blocks = np.array([block for block in table if block], np.int64)
        states[blocks] = np.where(states[blocks] == FREE, HELD, SHARED)
        owner[blocks] = number
    per_cell = max(1, -(-total // MAX_CELLS))
    cells = states[1:] if per_cell == 1 else _strongest(states[1:], per_cell)
    owners = owner[1::per_cell]
    edges = np.flatnonzero((np.diff(cells) != 0) | (np.diff(owners) != 0)) + 1
    starts = np.concatenate([[0], edges])
    lengths = np.diff(np.concatenate([starts, [len(cells)]]))
    runs = np.stack([lengths, cells[starts], owners[starts]], axis=1).tolist() if total else []
    return {"cell_blocks": per_cell, "runs": runs}


def _strongest(states: np.ndarray[Any, Any], per_cell: int) -> np.ndarray[Any, Any]:
    """The most telling state of each cell's blocks: in use before cached before free."""
    order = np.array([0, 3, 4, 1, 2])  # by state
    strongest = np.maximum.reduceat(order[states], np.arange(0, len(states), per_cell))
    return np.argsort(order)[strongest]


def tree(
    cache: CacheManager, tenant: str, own: Sequence[bytes], limit: int, *, with_tokens: bool = False
) -> dict[str, Any]:
    """A tenant's prefixes in the first group; blocks that follow each other without a branch are one node.

    `own` are the keys of a sequence's blocks: its nodes are marked. `with_tokens`: nodes have the tokens of their first
    block.
    """
    pool, history = cache.pools[0], cache.history
    if history is None:
        return {"nodes": [], "total": 0, "shown": 0}
    entries: dict[bytes, dict[str, Any]] = {}
    for block, link in islice(pool.published_blocks(), MAX_LOOKED_AT):
        if link.tenant != tenant:
            continue
        if len(entries) == MAX_TREE_BLOCKS:
            break
        holders = pool.references(block)
        state = "held" if holders else "cached"
        entries[link.key] = {
            "parent": link.parent, "hits": pool.hits(block), "state": state, "holders": holders, "link": link,
        }  # fmt: skip
    now = history.clock()
    for ghost in history.ghosts():
        if ghost.link.tenant != tenant or not ghost.evicted:
            continue
        if ghost.link.key not in entries and len(entries) < MAX_TREE_BLOCKS:
            entries[ghost.link.key] = {
                "parent": ghost.link.parent, "hits": ghost.hits, "state": "evicted", "holders": 0,
                "link": ghost.link, "idle_s": round(now - ghost.since, 3),
            }  # fmt: skip
    nodes = _join(entries, set(own), cache.block_size)
    nodes.sort(key=lambda node: (node["state"] == "evicted", not node["own"], -node["hits"], node["depth"]))
    shown = _with_ancestors(nodes, limit)
    for node in nodes:
        link = node.pop("link")
        node["first_tokens"] = link.tokens if with_tokens else None
    return {"nodes": shown, "total": len(nodes), "shown": len(shown)}


def _join(entries: dict[bytes, dict[str, Any]], own: set[bytes], block_size: int) -> list[dict[str, Any]]:
    children: dict[bytes | None, list[bytes]] = defaultdict(list)
    for key, entry in entries.items():
        children[entry["parent"] if entry["parent"] in entries else None].append(key)
    nodes: list[dict[str, Any]] = []
    open_ends: list[tuple[bytes, str | None, int]] = [(key, None, 0) for key in children[None]]
    while open_ends:
        key, parent, depth = open_ends.pop()
        entry = entries[key]
        name, blocks = key.hex()[:16], 1
        marked = key in own
        while len(following := children[key]) == 1 and _alike(entry, entries[following[0]]):
            key, blocks = following[0], blocks + 1
            marked = marked or key in own
        nodes.append(
            {
                "id": name,
                "link": entry["link"],
                "parent": parent,
                "depth": depth,
                "blocks": blocks,
                "tokens": blocks * block_size,
                "hits": entry["hits"],
                "state": entry["state"],
                "holders": entry["holders"],
                "own": marked,
                "idle_s": entry.get("idle_s"),
            }
        )
        open_ends += [(child, name, depth + blocks) for child in following]
    return nodes


def _alike(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return all(first[name] == second[name] for name in ("hits", "state", "holders"))


def _with_ancestors(nodes: list[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """At most `limit` nodes, the first ones with all of their ancestors."""
    by_id = {node["id"]: node for node in nodes}
    shown: dict[str, dict[str, Any]] = {}
    for node in nodes:
        path = []
        at: dict[str, Any] | None = node
        while at is not None and at["id"] not in shown:
            path.append(at)
            at = by_id.get(at["parent"] or "")
        if len(shown) + len(path) > limit:
            continue
        shown.update((one["id"], one) for one in reversed(path))
    return list(shown.values())


def evictions(cache: CacheManager, tenant: str) -> dict[str, Any]:
    """The number of evictions of all tenants, and the tenant's recent ones, newest first."""
    history = cache.history
    if history is None:
        return {"total": 0, "last_60_s": 0, "recent": [], "ghosts": 0}
    now = history.clock()
    recent = [
        {"at": ghost.since, "tokens": cache.block_size, "depth": _depth(cache, ghost.link.parent), "hits": ghost.hits}
        for ghost in reversed(history.recent)
        if ghost.link.tenant == tenant
    ]
    last = sum(now - ghost.since < 60 for ghost in history.recent)
    return {"total": history.evictions, "last_60_s": last, "recent": recent, "ghosts": len(history)}


def _depth(cache: CacheManager, parent: bytes) -> int:
    """How many known blocks lead to the one with this parent."""
    pool, history, depth = cache.pools[0], cache.history, 0
    assert history is not None
    while True:
        block, ghost = pool.find(parent), history.ghost(parent)
        link = pool.link(block) if block is not None else ghost.link if ghost is not None else None
        if link is None:
            return depth
        parent, depth = link.parent, depth + 1
