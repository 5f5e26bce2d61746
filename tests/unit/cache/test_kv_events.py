"""Events of the prefix cache in the format that other routers know."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.cache import CacheManager
from penstock.cache.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEventLog
from penstock.store.spec import CacheGroup

SIZE = 4


# As a subscriber declares them: vLLM's documented structs, and no field of ours.
class KVCacheEvent(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    pass


class Stored(KVCacheEvent, tag="BlockStored"):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None


class Removed(KVCacheEvent, tag="BlockRemoved"):
    block_hashes: list[bytes | int]
    medium: str | None


class Cleared(KVCacheEvent, tag="AllBlocksCleared"):
    pass


class Batch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Stored | Removed | Cleared]
    data_parallel_rank: int | None = None


def manager(blocks: int = 9) -> tuple[CacheManager, KvEventLog]:
    log = KvEventLog(SIZE, "CPU")
    return CacheManager([CacheGroup(window=0, layers=(0,))], [blocks], SIZE, True, None, b"secret", log), log


def run(cache: CacheManager, tokens: list[int]) -> list[bytes]:
    """A sequence from its start to its end; returns the keys of its full blocks."""
    chain = cache.chain("", "")
    hit = cache.lookup_prefix(chain, tokens)
    table = cache.allocate(hit, len(tokens), len(tokens), 0)
    assert table is not None
    cache.advance(table, chain, tokens, len(tokens))
    cache.release(table)
    return [link.key for link in chain.links]


def test_blocks_come_as_chains_and_go() -> None:
    cache, log = manager()
    assert log.take() == [AllBlocksCleared()]
    first = run(cache, list(range(10)))
    assert log.take() == [BlockStored(first, None, list(range(8)), SIZE, None, "CPU")]
    longer = run(cache, [*range(8), *range(20, 24)])
    assert log.take() == [BlockStored(longer[2:], first[1], list(range(20, 24)), SIZE, None, "CPU")]
    run(cache, list(range(10)))
    assert log.take() == []  # nothing is new
    other = run(cache, list(range(100, 128)))  # takes the room of others
    events = log.take()
    removed = [key for event in events if isinstance(event, BlockRemoved) for key in event.block_hashes]
    assert set(removed) <= {*first, *longer}
    assert removed
    assert [event.block_hashes for event in events if isinstance(event, BlockStored)] == [other]
    cache.clear()
    assert log.take() == [AllBlocksCleared()]


def test_a_follower_of_the_events_knows_what_is_cached() -> None:
    cache, log = manager(7)
    known: dict[bytes, tuple[bytes | None, tuple[int, ...]]] = {}
    for start in (0, 50, 0, 70, 50, 0):
        run(cache, list(range(start, start + 13)))
        for event in log.take():
            match event:
                case BlockStored():
                    parent = event.parent_block_hash
                    for place, key in enumerate(event.block_hashes):
                        known[key] = parent, tuple(event.token_ids[place * SIZE : (place + 1) * SIZE])
                        parent = key
                case BlockRemoved():
                    for key in event.block_hashes:
                        del known[key]
                case AllBlocksCleared():
                    known.clear()
        published = {link.key: tuple(link.tokens) for _, link in cache.pools[0].published_blocks()}
        assert {key: tokens for key, (_, tokens) in known.items()} == published
        cache.check_integrity()


def test_the_documented_structs_read_them() -> None:
    cache, log = manager()
    keys = run(cache, list(range(9)))
    cache.clear()
    chain = cache.chain("", "")
    chain.grow([1, 2, 3, 4], 1)
    log.store(chain.links[0], first=True)
    payload = msgspec.msgpack.encode((1.5, [BlockStored(keys, None, [1], SIZE, None, "CPU"), *log.take()]))
    batch = msgspec.msgpack.decode(payload, type=Batch)
    assert batch.ts == 1.5
    assert [type(event) for event in batch.events] == [Stored, Cleared, Stored]
    assert batch.events[0] == Stored(list(keys), None, [1], SIZE, None, "CPU")
    removed: Any = msgspec.msgpack.decode(msgspec.msgpack.encode((1, [BlockRemoved(keys, "GPU")])), type=Batch)
    assert removed.events == [Removed(list(keys), "GPU")]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(AllBlocksCleared())) == ["AllBlocksCleared"]
