from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.database.database import open_database
from penstock.database.threads import DatabaseThreads
from penstock.errors import NotFound, StorageUnavailable
from penstock.http import shared_responses
from penstock.http.response_store import MemoryResponseStore, NewResponse, ResponseStore, StoredResponse
from penstock.http.shared_responses import SharedResponseStore

SAID = [{"role": "user", "content": "Hi 🦙"}]
KINDS = ("memory", "database")


class Clock:
    """A moment later at each look."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@asynccontextmanager
async def opened(kind: str, folder: Path, **bounds: Any) -> AsyncIterator[Any]:
    if kind == "memory":
        yield MemoryResponseStore(**bounds)
        return
    database, threads = open_database(f"sqlite:///{folder / 'shared.db'}"), DatabaseThreads(2, "test")
    try:
        yield SharedResponseStore(database, threads, **{"clock": Clock(), **bounds})
    finally:
        threads.close()
        database.close()


def kept(body: bytes = b"{}") -> StoredResponse:
    return StoredResponse(body, msgspec.json.encode(SAID), items=b"[1]", pieces=b"[[]]")


async def used(store: ResponseStore, *tenants: str) -> tuple[int, int]:
    """Responses and bytes."""
    if isinstance(store, MemoryResponseStore):
        return len(store), store.num_bytes
    assert isinstance(store, SharedResponseStore)
    with store._database.read() as connection:
        usage = store._usage(connection).values()
    return sum(count for _, count in usage), sum(size for size, _ in usage)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_comes_back(kind: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(kind, tmp_path) as store:
            await store.put("", "a", kept())
            assert await store.get("", "a") == kept()
            assert (await store.get("", "a")).messages() == SAID
            assert await used(store) == (1, len(b"{}" + msgspec.json.encode(SAID) + b"[1]" + b"[[]]"))
            await store.replace("", "a", kept(b"{ }"))
            assert await store.bodies("") == [b"{ }"]
            assert await used(store) == (1, kept(b"{ }").size)
            with pytest.raises(NotFound):
                await store.replace("", "b", kept())

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_those_not_used_for_longest_make_room(kind: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(kind, tmp_path, max_responses=2) as store:
            for name in ("a", "b"):
                await store.put("", name, kept(name.encode()))
            await store.get("", "a")
            await store.put("", "c", kept(b"c"))
            assert ((await store.get("", "a")).body, (await store.get("", "c")).body) == (b"a", b"c")
            assert (await used(store))[0] == 2
            with pytest.raises(NotFound, match="evicted") as caught:
                await store.get("", "b", param="previous_response_id")
            assert caught.value.param == "previous_response_id"

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_bounded_too(kind: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(kind, tmp_path, max_bytes=1000) as store:
            for name in "abcdef":
                await store.put("", name, kept(b"x" * 300))
                assert (await used(store))[1] <= 1000
            assert 0 < (await used(store))[0] < 4
            await store.put("", "huge", kept(b"x" * 2000))
            assert await used(store) == (0, 0)

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_dropped(kind: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(kind, tmp_path) as store:
            await store.put("", "a", kept())
            await store.delete("", "a")
            assert await used(store) == (0, 0)
            for use in (store.delete, store.get):
                for name in ("a", "a\0"):
                    with pytest.raises(NotFound):
                        await use("", name)

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_a_response_is_its_tenants_alone(kind: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(kind, tmp_path) as store:
            await store.put("alice", "a", kept())
            for tenant in ("bob", ""):
                assert await store.bodies(tenant) == []
                for use in (store.delete, store.get):
                    with pytest.raises(NotFound) as caught:
                        await use(tenant, "a")
                    with pytest.raises(NotFound) as unknown:
                        await use(tenant, "b")
                    assert str(caught.value) == str(unknown.value).replace("'b'", "'a'")  # as if it did not exist
                with pytest.raises(NotFound):
                    await store.replace(tenant, "a", kept(b"mine"))
            assert (await store.get("alice", "a")).messages() == SAID

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bounds", [{"max_responses": 4}, {"max_bytes": 1000}])
def test_no_tenant_evicts_what_another_keeps(kind: str, bounds: dict[str, int], tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(kind, tmp_path, **bounds) as store:
            await store.put("alice", "a", kept(b"x" * 100))
            for place in range(20):
                await store.put("bob", str(place), kept(b"x" * 100))
            assert len((await store.get("alice", "a")).body) == 100
            assert len((await store.get("bob", "19")).body) == 100
            with pytest.raises(NotFound):
                await store.get("bob", "0")

    asyncio.run(run())


def test_those_in_a_database_expire(tmp_path: Path) -> None:
    async def run() -> None:
        clock = Clock()
        async with opened("database", tmp_path, clock=clock) as store:
            await store.put("", "a", kept())
            clock.now += shared_responses.LIFETIME_S
            with pytest.raises(NotFound):
                await store.get("", "a")
            assert await store.bodies("") == []
            await store.put("", "b", kept())
            assert (await used(store))[0] == 1

    asyncio.run(run())


def test_while_the_database_is_away_no_answer_is_made_that_cannot_be_stored(tmp_path: Path) -> None:
    """The first request finds out at its end, the next ones before they begin."""

    async def run() -> None:
        async with opened("database", tmp_path) as store:
            new = NewResponse(store, "alice")
            await new.check()
            new.note("a", kept())
            database, store._database = store._database, _Away()
            with pytest.raises(StorageUnavailable):
                await new.put()
            with pytest.raises(StorageUnavailable):
                await new.check()
            store._database = database
            await new.check()
            await new.put()
            assert await store.get("alice", "a") == kept()

    asyncio.run(run())


def test_nothing_noted_is_nothing_stored() -> None:
    store = MemoryResponseStore()
    asyncio.run(NewResponse(store, "").put())
    assert len(store) == 0


class _Away:
    def read(self) -> Any:
        raise StorageUnavailable("away")

    write = read
