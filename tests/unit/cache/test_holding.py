"""Blocks that no sequence holds, while their content travels between two engines."""

from __future__ import annotations

import pytest

from penstock.cache import CacheManager, PrefixChain
from penstock.store.spec import CacheGroup

TOKENS = list(range(100, 133))  # eight full blocks and a token


def manager(*windows: int, blocks: int = 40, context: int = 32) -> CacheManager:
    groups = [CacheGroup(window, (index,)) for index, window in enumerate(windows)]
    cache = CacheManager(groups, [blocks + 1] * len(groups), 4, prefix_caching=True)
    cache.allow_holdings(context, step_tokens=8)
    return cache


def chain() -> PrefixChain:
    return PrefixChain(b"", 4)


def compute(cache: CacheManager, tokens: list[int]) -> None:
    """As a sequence would that computes all of them and goes."""
    links = chain()
    table = cache.allocate(cache.lookup_prefix(links, tokens), len(tokens), len(tokens), reserve=0)
    assert table is not None
    cache.advance(table, links, tokens, len(tokens))
    cache.release(table)


def cached(cache: CacheManager, tokens: list[int] = TOKENS) -> int:
    return cache.lookup_prefix(chain(), tokens).tokens


@pytest.mark.parametrize(
    ("windows", "blocks", "tokens"),
    [
        ((0,), 40, 32),  # all of a context's
        ((0,), 12, 16),
        ((0,), 8, 0),
        ((10,), 40, 32),
        ((0, 10), 13, 20),  # beside 8 blocks of the first group
        ((10,), 5, 0),
    ],
)
def test_how_much_of_a_prompt_may_be_held(windows: tuple[int, ...], blocks: int, tokens: int) -> None:
    cache = manager(*windows, blocks=blocks)
    assert cache.allow_holdings(32, step_tokens=8) == tokens


def test_what_is_held_is_not_evicted() -> None:
    cache = manager(0, blocks=16)
    compute(cache, TOKENS)
    holding = cache.hold_cached(chain(), TOKENS)
    assert holding is not None
    assert sorted(holding.blocks[0]) == list(range(8))
    compute(cache, list(range(500, 532)))  # takes all other blocks
    cache.check_integrity()
    assert cached(cache) == 32
    cache.release_holding(holding)
    compute(cache, list(range(600, 664)))
    cache.check_integrity()
    assert cached(cache) == 0


@pytest.mark.parametrize("windows", [(0,), (0, 10), (10,)])
def test_what_is_missing_is_cached_once_it_was_published(windows: tuple[int, ...]) -> None:
    """A group with a window needs only the blocks that the window reaches from the end."""
    cache = manager(*windows)
    links = chain()
    holding = cache.hold_missing(links, TOKENS, reserve=0)
    assert holding is not None
    expected = {0: list(range(8)), 10: [5, 6, 7]}
    assert [sorted(blocks) for blocks in holding.blocks] == [expected[window] for window in windows]
    cache.check_integrity()
    assert cached(cache) == 0
    for group, blocks in enumerate(holding.blocks):
        for index in blocks:
            cache.publish_held(holding, links, group, index)
    cache.release_holding(holding)
    cache.check_integrity()
    assert cached(cache) == 32
    assert all(usage.held == 0 for usage in cache.usage())


def test_only_what_is_missing_is_allocated() -> None:
    cache = manager(0)
    compute(cache, TOKENS[:12])
    holding = cache.hold_missing(chain(), TOKENS, reserve=0)
    assert holding is not None
    assert sorted(holding.blocks[0]) == [3, 4, 5, 6, 7]


def test_a_part_that_has_arrived_counts_and_the_rest_is_free_again() -> None:
    cache, links = manager(0), chain()
    holding = cache.hold_missing(links, TOKENS, reserve=0)
    assert holding is not None
    for index in (0, 1, 2, 5):
        cache.publish_held(holding, links, 0, index)
    cache.release_holding(holding)
    cache.check_integrity()
    assert cached(cache) == 12
    (usage,) = cache.usage()
    assert (usage.held, usage.cached, usage.free) == (0, 4, 36)


def test_a_block_that_was_computed_meanwhile_keeps_its_key() -> None:
    cache, links = manager(0), chain()
    holding = cache.hold_missing(links, TOKENS, reserve=0)
    assert holding is not None
    compute(cache, TOKENS)
    for index in holding.blocks[0]:
        cache.publish_held(holding, links, 0, index)
    cache.release_holding(holding)
    cache.check_integrity()
    assert cached(cache) == 32
    assert cache.usage()[0].cached == 8


def test_one_sequence_always_finds_the_blocks_of_its_context() -> None:
    """Else a running sequence could find none, with nobody left to preempt."""
    cache = manager(0, blocks=16, context=32)
    first = cache.hold_missing(chain(), TOKENS, reserve=0)
    assert first is not None
    assert cache.hold_missing(chain(), list(range(500, 505)), reserve=0) is None
    compute(cache, list(range(600, 632)))
    assert cache.hold_cached(chain(), list(range(600, 632))) is None
    cache.release_holding(first)
    assert cache.hold_cached(chain(), list(range(600, 632))) is not None


def test_blocks_are_left_for_running_sequences() -> None:
    cache = manager(0, blocks=20, context=32)
    assert cache.hold_missing(chain(), TOKENS, reserve=13) is None
    assert cache.hold_missing(chain(), TOKENS, reserve=12) is not None


def test_without_leave_nothing_is_held() -> None:
    cache = CacheManager([CacheGroup(0, (0,))], [41], 4, prefix_caching=True)
    assert cache.hold_missing(chain(), TOKENS, reserve=0) is None
