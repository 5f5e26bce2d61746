from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from penstock.cache.pool import Pool, Usage
from penstock.cache.prefix_chain import ChainLink, PrefixChain
from penstock.errors import PenstockError


def link(token: int) -> ChainLink:
    chain = PrefixChain(b"", 1)
    chain.grow([token], 1)
    return chain.links[0]


def published_blocks(pool: Pool, token: int) -> int:
    """A block that was used and given up, in the cache under a key of this token's."""
    (block,) = pool.allocate(1)
    pool.publish(block, link(token))
    pool.release([block], 0)
    return block


def test_hands_out_every_block_once_but_never_block_0() -> None:
    pool = Pool(6)
    assert sorted(pool.allocate(pool.available)) == [1, 2, 3, 4, 5]
    assert pool.available == 0


def test_evicts_the_least_recently_used_and_only_when_nothing_is_free() -> None:
    pool = Pool(5)
    first, second, third = (published_blocks(pool, token) for token in (1, 2, 3))
    pool.acquire([first])
    pool.release([first], 0)  # used again: second is the oldest now
    taken = pool.allocate(3)
    assert taken[1:] == [second, third]
    assert [pool.find(link(token).key) for token in (1, 2, 3)] == [first, None, None]


def test_a_block_is_given_up_by_its_last_holder() -> None:
    pool = Pool(2)
    block = published_blocks(pool, 1)
    pool.acquire([block])
    pool.acquire([block])
    pool.release([block], 0)
    assert pool.usage() == Usage(total=1, held=1, resting=0, cached=0, free=0)
    pool.release([block], 0)
    assert pool.usage() == Usage(total=1, held=0, resting=0, cached=1, free=0)


def test_a_block_rests_until_the_step_that_may_touch_it_has_retired() -> None:
    pool = Pool(3)
    plain, full = pool.allocate(2)
    pool.publish(full, link(1))
    pool.release([plain], step=5)
    pool.release([full], step=6)
    assert pool.available == 0
    pool.retire(4)
    assert pool.available == 0
    pool.retire(5)
    assert pool.usage() == Usage(total=2, held=0, resting=1, cached=0, free=1)
    pool.retire(6)
    assert pool.usage() == Usage(total=2, held=0, resting=0, cached=1, free=1)


def test_a_resting_block_can_be_read_again_and_then_rests_anew() -> None:
    pool = Pool(2)
    (block,) = pool.allocate(1)
    pool.publish(block, link(1))
    pool.release([block], step=1)
    pool.acquire([block])
    pool.release([block], step=2)
    pool.retire(1)
    assert pool.available == 0
    pool.retire(2)
    assert pool.available == 1


def test_the_first_block_of_a_key_keeps_it() -> None:
    pool = Pool(3)
    first, second = pool.allocate(2)
    pool.publish(first, link(1))
    pool.publish(second, link(1))
    pool.release([second], 0)
    assert pool.find(link(1).key) == first
    assert pool.usage().free == 1, "the double is worth nothing"


def test_an_unpublished_block_is_free_again() -> None:
    pool = Pool(3)
    cached = published_blocks(pool, 1)
    (held,) = pool.allocate(1)
    pool.publish(held, link(2))
    pool.unpublish(cached)
    pool.unpublish(held)
    assert pool.usage() == Usage(total=2, held=1, resting=0, cached=0, free=1)
    pool.release([held], 0)
    pool.check_integrity({})
    assert pool.usage().free == 2


CORRUPTIONS: dict[str, tuple[Callable[[Pool], object], str]] = {
    "lost": (lambda pool: pool._free.pop(), "the pool lists"),
    "doubled": (lambda pool: pool._free.append(pool._free[0]), "the pool lists"),
    "freed while held": (lambda pool: pool._free.append(1), "the pool lists"),
    "cached while held": (lambda pool: pool._cached.update({1: None}), "2 states at once"),
    "reference too many": (lambda pool: pool._references.__setitem__(1, 2), "2 references, but 1 tables"),
    "key without block": (lambda pool: pool._index._blocks.update({b"": 3}), "index"),
    "block without key": (lambda pool: pool._index._blocks.clear(), "index"),
    "wrong key": (
        lambda pool: (
            pool._index._links.__setitem__(2, msgspec.structs.replace(link(1), packed=b"else")),
            pool._index._blocks.clear(),
            pool._index._blocks.update({link(1).key: 2}),
        ),
        "not the hash",
    ),
    "cached without key": (
        lambda pool: (pool._index._links.__setitem__(2, None), pool._index._blocks.clear()),
        "has no key",
    ),
    "rests too long": (lambda pool: pool._resting.update({pool._free.pop(): 0}), "still rests"),
}


@pytest.mark.parametrize(("corrupt", "message"), CORRUPTIONS.values(), ids=CORRUPTIONS)
def test_integrity_check_notices(corrupt: Callable[[Pool], object], message: str) -> None:
    pool = Pool(5)
    assert pool.allocate(1) == [1]
    assert published_blocks(pool, 1) == 2
    pool.check_integrity({1: 1})
    corrupt(pool)
    with pytest.raises(PenstockError, match=message):
        pool.check_integrity({1: 1})
