from penstock.cache import CacheManager, EvictionHistory, PrefixChain, snapshot
from penstock.store.spec import CacheGroup

SIZE = 4
STATES = ("free", "held", "shared", "cached", "resting")


def start(cache: CacheManager, tokens: list[int], tenant: str = "") -> tuple[object, list[list[int]], PrefixChain]:
    chain = cache.chain(tenant, "")
    table = cache.allocate(cache.lookup_prefix(chain, tokens), len(tokens), len(tokens), 0)
    assert table is not None
    cache.advance(table, chain, tokens, len(tokens) - 1)
    return table, table.blocks, chain


def counted(group: dict[str, object]) -> dict[str, int]:
    runs = group["runs"]
    assert isinstance(runs, list)
    return {name: sum(length for length, state, _ in runs if state == index) for index, name in enumerate(STATES)}


def test_the_map_agrees_with_the_counts_and_names_the_owners() -> None:
    cache = CacheManager([CacheGroup(0, (0,))], [41], SIZE, True, EvictionHistory())
    gone, *_ = start(cache, [9] * 30)
    cache.release(gone)  # type: ignore[arg-type]
    _, first, _ = start(cache, list(range(17)))
    _, second, _ = start(cache, [*range(12), 77, 78, 79])
    (group,) = snapshot.page_map(cache, [(1, first), (2, second)])
    usage = cache.usage()[0]
    found = counted(group)
    assert found["shared"] == usage.shared == 3
    assert found["held"] + found["shared"] == usage.held
    assert (found["free"], found["cached"]) == (usage.free, usage.cached)
    assert sum(length for length, *_ in group["runs"]) == usage.total == 40
    owners = {owner for _, state, owner in group["runs"] if state in (1, 2)}
    assert owners == {1, 2}
    assert all(owner == 0 for _, state, owner in group["runs"] if state not in (1, 2))


def test_a_large_cache_is_drawn_in_cells_of_several_blocks() -> None:
    blocks = 3 * snapshot.MAX_CELLS
    cache = CacheManager([CacheGroup(0, (0,))], [blocks + 1], SIZE, True, EvictionHistory())
    _, table, _ = start(cache, list(range(100)))
    (group,) = snapshot.page_map(cache, [(5, table)])
    assert group["cell_blocks"] == 3
    assert sum(length for length, *_ in group["runs"]) == snapshot.MAX_CELLS
    used = [(length, state, owner) for length, state, owner in group["runs"] if state]
    assert used == [(9, snapshot.HELD, 5)]


def test_the_tree_joins_blocks_and_branches_where_prompts_part() -> None:
    cache = CacheManager([CacheGroup(0, (0,))], [100], SIZE, True, EvictionHistory())
    *_, chain = start(cache, list(range(25)))
    start(cache, [*range(12), *[50] * 13])
    told = snapshot.tree(cache, "", [link.key for link in chain.links], 100)
    nodes = {node["id"]: node for node in told["nodes"]}
    (root,) = [node for node in nodes.values() if node["parent"] is None]
    assert (root["blocks"], root["hits"], root["holders"], root["own"]) == (3, 1, 2, True)
    children = [node for node in nodes.values() if node["parent"] == root["id"]]
    assert sorted((node["blocks"], node["own"]) for node in children) == [(3, False), (3, True)]
    assert told["total"] == told["shown"] == 3
    assert snapshot.tree(cache, "", [], 2)["shown"] == 2


def test_the_tree_remembers_what_was_evicted() -> None:
    cache = CacheManager([CacheGroup(0, (0,))], [9], SIZE, True, EvictionHistory())
    table, *_ = start(cache, list(range(17)))
    cache.release(table)  # type: ignore[arg-type]
    table, *_ = start(cache, list(range(100, 131)))
    states = {node["state"] for node in snapshot.tree(cache, "", [], 100)["nodes"]}
    assert states == {"held", "evicted"}
    told = snapshot.evictions(cache, "")
    assert told["total"] == len(told["recent"]) == 4
    assert {one["depth"] for one in told["recent"]} == {0, 1, 2, 3}


def test_a_tenant_sees_its_own_prefixes_and_evictions_among_the_totals() -> None:
    cache = CacheManager([CacheGroup(0, (0,))], [9], SIZE, True, EvictionHistory())
    table, *_ = start(cache, list(range(17)), "alice")
    cache.release(table)  # type: ignore[arg-type]
    start(cache, list(range(25)), "bob")  # pushes out two of her blocks
    hers, his = (snapshot.tree(cache, tenant, [], 100)["nodes"] for tenant in ("alice", "bob"))
    assert sum(node["blocks"] for node in hers) == 4
    assert {node["state"] for node in hers} == {"cached", "evicted"}
    assert [(node["blocks"], node["state"]) for node in his] == [(6, "held")]
    assert not {node["id"] for node in hers} & {node["id"] for node in his}  # though the tokens are the same
    assert snapshot.tree(cache, "", [], 100) == {"nodes": [], "total": 0, "shown": 0}
    told = [snapshot.evictions(cache, tenant) for tenant in ("alice", "bob")]
    assert [len(one.pop("recent")) for one in told] == [3, 0]
    assert told[0] == told[1] == {"total": 3, "last_60_s": 3, "ghosts": 3}


def test_nodes_have_the_tokens_of_their_first_block_where_they_are_wanted_and_the_tenants_own() -> None:
    cache = CacheManager([CacheGroup(0, (0,))], [20], SIZE, True, EvictionHistory())
    start(cache, [1, 2, 3, 4, 5, 6, 7, 8, 9], "mine")
    start(cache, [7, 7, 7, 7, 7], "other")
    (node,) = snapshot.tree(cache, "mine", [], 10, with_tokens=True)["nodes"]
    assert node["first_tokens"] == [1, 2, 3, 4]
    (node,) = snapshot.tree(cache, "mine", [], 10)["nodes"]
    assert node["first_tokens"] is None
