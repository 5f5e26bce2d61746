"""What the frontend expects a replica's prefix cache to hold."""

from __future__ import annotations

from penstock.cache.manager import CacheManager
from penstock.deployment.prefix_tracker import MAX_KEYS, PrefixTracker, prompt_keys
from penstock.flow.prefix import draw_secret
from penstock.store.spec import CacheGroup

SECRET = draw_secret()
SIZE = 4


def keys(*tokens: int, tenant: str = "") -> list[bytes]:
    return prompt_keys(SECRET, tenant, "", tokens, SIZE)


def test_keys_are_those_of_the_engine() -> None:
    manager = CacheManager([CacheGroup(window=0, layers=())], [9], SIZE, True, secret=SECRET)
    chain = manager.chain("t", "")
    chain.grow(range(11), 2)
    assert keys(*range(11), tenant="t") == [link.key for link in chain.links]
    assert keys(*range(11)) != keys(*range(11), tenant="t")
    assert keys(1, 2, 3) == []
    assert len(keys(*range(SIZE * (MAX_KEYS + 2)))) == MAX_KEYS


def test_it_finds_the_longest_known_prefix() -> None:
    tracker = PrefixTracker(100, SIZE)
    tracker.add(keys(*range(12)))
    assert tracker.cached_tokens(keys(*range(13)), 13) == 12
    assert tracker.cached_tokens(keys(*range(12)), 12) == 8, "the last token is computed, and its block with it"
    assert tracker.cached_tokens(keys(*range(8), 99, 99, 99, 99, 99), 13) == 8
    assert tracker.cached_tokens(keys(99, *range(12)), 13) == 0
    assert tracker.cached_tokens([], 0) == 0


def test_the_engine_finds_what_is_predicted() -> None:
    manager = CacheManager([CacheGroup(window=0, layers=())], [9], SIZE, True, secret=SECRET)
    tracker = PrefixTracker(8, SIZE)
    for count in (11, 12, 13):
        tokens = list(range(count))
        chain = manager.chain("", "")
        hit = manager.lookup_prefix(chain, tokens)
        assert tracker.cached_tokens(keys(*tokens), count) == hit.tokens, count
        tracker.add(keys(*tokens))
        table = manager.allocate(hit, count, count, 0)
        assert table is not None
        manager.advance(table, chain, tokens, count)
        manager.release(table)


def test_the_least_recently_used_and_the_last_blocks_go_first() -> None:
    tracker = PrefixTracker(4, SIZE)
    old, new = keys(*range(12)), keys(*range(100, 108))
    tracker.add(old)
    tracker.add(new)
    assert len(tracker) == 4
    assert tracker.cached_tokens(new, 9) == 8
    assert tracker.cached_tokens(old, 13) == 8, "its last block was evicted first"
    tracker.add(old[:1])
    tracker.add(keys(*range(200, 208)))
    assert tracker.cached_tokens(old, 13) == 4


def test_a_tracker_that_expects_too_much_holds_less() -> None:
    tracker = PrefixTracker(10, SIZE)
    for _ in range(20):
        tracker.correct(predicted=40, found=0)
    tracker.add(keys(*range(40)))
    assert len(tracker) < 5
    for _ in range(500):
        tracker.correct(predicted=4, found=4)
    tracker.add(keys(*range(40)))
    assert len(tracker) == 10


def test_predictions_that_fail_are_not_trusted_until_they_hold_again() -> None:
    tracker = PrefixTracker(10, SIZE)
    assert tracker.trusted
    for _ in range(10):
        tracker.correct(predicted=40, found=40)
    assert tracker.trusted
    for _ in range(10):
        tracker.correct(predicted=40, found=0)
    assert not tracker.trusted
    for _ in range(20):
        tracker.correct(predicted=40, found=40)
    assert tracker.trusted
    tracker.correct(predicted=0, found=0)
    assert tracker.trusted


def test_a_restart_forgets_all() -> None:
    tracker = PrefixTracker(10, SIZE)
    tracker.add(keys(*range(12)))
    tracker.correct(predicted=40, found=0)
    tracker.clear()
    assert (len(tracker), tracker.trusted) == (0, True)
