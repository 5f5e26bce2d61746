from __future__ import annotations

import pytest

from penstock.cache import BlockTable, CacheManager, PrefixChain
from penstock.errors import PenstockError
from penstock.flow.prefix import root_key
from penstock.store.spec import CacheGroup

TOKENS = list(range(100, 164))


def manager(*windows: int, blocks: int = 40, prefix_caching: bool = True) -> CacheManager:
    groups = [CacheGroup(window, (index,)) for index, window in enumerate(windows)]
    return CacheManager(groups, [blocks + 1] * len(groups), 4, prefix_caching)


def start(cache: CacheManager, tokens: list[int]) -> tuple[BlockTable, PrefixChain, int]:
    """Claim for all tokens, as a sequence that may compute them in one step; gives the hit's length too."""
    chain = PrefixChain(b"", 4)
    hit = cache.lookup_prefix(chain, tokens)
    table = cache.allocate(hit, len(tokens), len(tokens), reserve=0)
    assert table is not None
    return table, chain, hit.tokens


def leave_cached(cache: CacheManager, tokens: list[int], upto: int) -> None:
    """As if a sequence had computed the first `upto` tokens and gone."""
    table, chain, _ = start(cache, tokens)
    cache.advance(table, chain, tokens, upto)
    cache.release(table)
    cache.check_integrity()


def cached(cache: CacheManager, tokens: list[int], salt: str = "") -> int:
    return cache.lookup_prefix(PrefixChain(salt.encode(), 4), tokens).tokens


@pytest.mark.parametrize(("length", "expected"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (16, 12), (17, 16), (60, 16)])
def test_a_match_is_whole_blocks_and_never_the_last_token(length: int, expected: int) -> None:
    cache = manager(0)
    leave_cached(cache, TOKENS[:20], upto=19)
    assert cached(cache, TOKENS[:length]) == expected


def test_a_match_ends_where_tokens_or_salts_differ() -> None:
    cache = manager(0)
    leave_cached(cache, TOKENS[:20], upto=20)
    assert cached(cache, [*TOKENS[:9], 0, *TOKENS[10:20]]) == 8
    assert cached(cache, TOKENS[:20], salt="another") == 0


def test_what_is_not_settled_cannot_be_matched() -> None:
    cache = manager(0)
    table, chain, _ = start(cache, TOKENS[:20])
    assert cached(cache, TOKENS[:20]) == 0
    cache.advance(table, chain, TOKENS[:20], 11)
    assert cached(cache, TOKENS[:20]) == 8


def test_a_window_needs_only_the_blocks_it_reaches() -> None:
    cache = manager(6)
    leave_cached(cache, TOKENS[:24], upto=24)
    hit = cache.lookup_prefix(PrefixChain(b"", 4), TOKENS[:24])
    # The query at 20 sees 15 .. 20: blocks 3 and 4 of the five that are cached.
    assert hit.tokens == 20
    assert [bool(block) for block in hit.blocks[0]] == [False, False, False, True, True]


def test_groups_agree_on_the_longest_start_that_suits_all() -> None:
    cache = manager(0, 6)
    leave_cached(cache, TOKENS[:24], upto=24)
    full, window = cache._pools
    chain = PrefixChain(b"", 4)
    chain.grow(TOKENS, 6)
    keys = [link.key for link in chain.links]
    _evict(window, keys[3])
    # From 20 and 16 the window reaches block 3, which is gone; from 12 it reaches blocks 1 and 2.
    assert cached(cache, TOKENS[:24]) == 12
    _evict(window, keys[1])
    # Then no start is left that has all it sees, but the one after block 0, whose window begins there.
    assert cached(cache, TOKENS[:24]) == 4
    _evict(full, keys[0])
    assert cached(cache, TOKENS[:24]) == 0


def _evict(pool: object, key: bytes) -> None:
    pool.unpublish(pool.find(key))  # type: ignore[attr-defined]


def test_a_second_sequence_shares_blocks_and_writes_to_its_own() -> None:
    cache = manager(0)
    one, chain, _ = start(cache, TOKENS[:10])
    cache.advance(one, chain, TOKENS[:10], 10)
    two, _, hit = start(cache, TOKENS[:10])
    assert hit == 8
    assert two.blocks[0][:2] == one.blocks[0][:2]
    assert two.blocks[0][2] != one.blocks[0][2]
    cache.check_integrity()


def test_claim_is_all_or_nothing_and_counts_the_cached_blocks_it_takes() -> None:
    cache = manager(0, 0, blocks=6)
    leave_cached(cache, TOKENS[:16], upto=16)  # four of six blocks are cached, two are free
    chain = PrefixChain(b"", 4)
    tokens = TOKENS[:16] + [0] * 8
    before = cache.usage()
    assert cache.allocate(cache.lookup_prefix(chain, tokens), len(tokens), 0, reserve=1) is None
    assert cache.usage() == before
    assert cache.allocate(cache.lookup_prefix(chain, tokens), len(tokens), 0, reserve=0) is not None
    assert [usage.held for usage in cache.usage()] == [6, 6]


def test_claim_gives_a_window_no_more_than_it_needs_for_a_start() -> None:
    cache = manager(0, 8)
    table = cache.allocate(cache.no_hit(), 60, ahead=16, reserve=0)
    assert table is not None
    assert [len(blocks) for blocks in table.blocks] == [15, 4]
    assert table.capacity == 16


def test_extend_is_all_groups_or_nothing() -> None:
    cache = manager(0, 0, blocks=4)
    table, _, _ = start(cache, TOKENS[:8])
    cache._pools[1].allocate(1)
    before = cache.usage()
    assert cache.extend(table, 16) is None
    assert cache.usage() == before
    news = cache.extend(table, 12)
    assert news is not None
    assert [len(new) for new in news] == [1, 1]
    assert table.capacity == 12


def test_the_window_gives_up_blocks_exactly_when_no_query_can_see_them() -> None:
    cache = manager(6)
    table, chain, _ = start(cache, TOKENS[:24])
    for settled in range(1, 24):
        if settled >= table.due:
            cache.advance(table, chain, TOKENS[:24], settled)
        seen = {position // 4 for position in range(max(0, settled - 5), settled + 1)}
        assert table.first[0] == min(seen)
        assert [bool(block) for block in table.blocks[0]] == [index >= min(seen) for index in range(6)]


def test_given_up_blocks_rest_while_a_step_is_in_flight() -> None:
    cache = manager(0, blocks=6)
    table, chain, _ = start(cache, TOKENS[:18])
    cache.begin_step(1)
    cache.advance(table, chain, TOKENS[:18], 16)
    cache.release(table)
    assert cache.allocate(cache.no_hit(), 8, 8, reserve=0) is None, "one block was free before; the others rest"
    again, _, hit = start(cache, TOKENS[:16])
    assert hit == 12, "reading is safe at once"
    cache.retire(1)
    cache.check_integrity()
    assert cache.usage()[0] == (6, 4, 0, 1, 1, 0)
    cache.release(again)


def test_will_fit_counts_what_rests_and_what_the_window_will_give_up() -> None:
    cache = manager(4, blocks=5)
    table, _, _ = start(cache, TOKENS[:16])
    other = cache.allocate(cache.no_hit(), 4, 4, reserve=0)
    assert other is not None
    assert cache.extend(table, 20) is None
    assert not cache.will_fit(table, 20, position=6)  # the query at 6 sees position 3: block 0 stays
    assert cache.will_fit(table, 20, position=7)
    assert not cache.will_fit(table, 24, position=7)
    cache.begin_step(1)
    cache.release(other)
    assert cache.extend(table, 20) is None
    assert cache.will_fit(table, 24, position=7)


def test_forget_leaves_only_what_is_kept() -> None:
    cache = manager(0, 6)
    table, chain, _ = start(cache, TOKENS[:24])
    cache.advance(table, chain, TOKENS[:24], 24)
    cache.uncache(table, chain, keep=9)
    cache.release(table)
    cache.check_integrity()
    assert [usage.cached for usage in cache.usage()] == [2, 2]
    assert cached(cache, TOKENS[:24]) == 8


def test_forget_reaches_blocks_given_up_before() -> None:
    cache = manager(0)
    table, chain, _ = start(cache, TOKENS[:24])
    cache.advance(table, chain, TOKENS[:24], 24)
    cache.release(table)
    cache.uncache(None, chain, keep=8)
    assert cached(cache, TOKENS[:24]) == 8


def test_forget_spares_what_another_sequence_holds() -> None:
    cache = manager(0)
    table, chain, _ = start(cache, TOKENS[:24])
    cache.advance(table, chain, TOKENS[:24], 24)
    other, _, hit = start(cache, TOKENS[:17])
    assert hit == 16
    cache.uncache(table, chain, keep=4)
    cache.release(table)
    assert cached(cache, TOKENS[:24]) == 16
    cache.release(other)


def test_forget_reaches_what_was_computed_a_second_time() -> None:
    cache = manager(0, 6)
    first, chain, _ = start(cache, TOKENS[:24])
    cache.advance(first, chain, TOKENS[:24], 24)
    cache.release(first)  # preempted; then the window's blocks are evicted, so that it begins anew
    for link in chain.links:
        _evict(cache._pools[1], link.key)
    second, _, hit = start(cache, TOKENS[:24])
    assert hit == 0
    cache.advance(second, chain, TOKENS[:24], 24)
    cache.uncache(second, chain, keep=9)
    cache.release(second)
    assert [usage.cached for usage in cache.usage()] == [2, 2]


def test_the_tail_of_a_released_table_is_evicted_first() -> None:
    cache = manager(0, blocks=6)
    leave_cached(cache, TOKENS[:24], upto=24)
    cache.allocate(cache.no_hit(), 8, 8, reserve=0)
    assert cached(cache, TOKENS[:24]) == 16


def test_without_prefix_caching_nothing_is_shared_or_kept() -> None:
    cache = manager(0, prefix_caching=False)
    leave_cached(cache, TOKENS[:24], upto=24)
    assert cached(cache, TOKENS[:24]) == 0
    assert cache.usage()[0].free == 40


@pytest.mark.parametrize("block_size", [1, 3, 4, 7])
@pytest.mark.parametrize("window", [0, 1, 2, 5, 8, 13])
@pytest.mark.parametrize("step_tokens", [1, 2, 5, 16])
def test_demand_is_what_one_sequence_really_takes(block_size: int, window: int, step_tokens: int) -> None:
    context, most = 50, 0
    cache = CacheManager([CacheGroup(window, (0,))], [100], block_size, False)
    for first in range(1, step_tokens + 1):  # every alignment of steps to blocks
        table = cache.allocate(cache.no_hit(), context, first, reserve=0)
        assert table is not None
        computed = 0
        while computed < context:
            computed = first if not computed else min(context, computed + step_tokens)
            cache.extend(table, computed)
            most = max(most, cache.usage()[0].held)
            cache.advance(table, PrefixChain(b"", block_size), TOKENS, computed)
        cache.release(table)
    demand = cache.required_blocks(context, step_tokens)[0]
    assert most <= demand
    if step_tokens >= block_size:  # then every alignment occurs
        assert most == demand


def test_integrity_check_notices_a_write_to_a_shared_block() -> None:
    cache = manager(0)
    table, chain, _ = start(cache, TOKENS[:8])
    chain.grow(TOKENS[:8], 2)
    cache._pools[0].publish(table.blocks[0][1], chain.links[1])
    with pytest.raises(PenstockError, match="yet to be written"):
        cache.check_integrity()


def test_integrity_check_notices_a_table_that_lost_a_block() -> None:
    cache = manager(0)
    table, _, _ = start(cache, TOKENS[:8])
    table.blocks[0][0] = 0
    with pytest.raises(PenstockError, match="settled to 0 holds"):
        cache.check_integrity()


def test_chains_begin_with_the_servers_secret() -> None:
    """Engines that were given the same one agree on the keys; those that were given none draw their own."""
    groups = [CacheGroup(0, (0,))]
    secret = bytes(range(32))
    first, again, *others = (CacheManager(groups, [9], 4, True, None, one) for one in (secret, secret, None, None))
    assert first.chain("a", "salt").root == again.chain("a", "salt").root == root_key(secret, "a", "salt")
    assert len({cache.chain("a", "salt").root for cache in (first, *others)}) == 3
