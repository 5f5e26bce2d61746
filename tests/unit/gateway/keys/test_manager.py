from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from helpers.key_stores import BOSS, Clock, open_store
from helpers.postgresql import PostgresServer
from penstock.errors import KeyRevoked, StorageUnavailable
from penstock.gateway.keys import manager as manager_module
from penstock.gateway.keys.manager import KeyManager
from penstock.gateway.keys.store import KeyStore
from penstock.gateway.keys.stored_keys import StoredKeys


@pytest.fixture(autouse=True)
def _fast_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_module, "POLL_S", 0.01)


@contextlib.asynccontextmanager
async def started(store: KeyStore) -> AsyncIterator[KeyManager]:
    manager = KeyManager(store, StoredKeys(Clock()))
    await manager.start()
    try:
        yield manager
    finally:
        await manager.close()


async def poll(manager: KeyManager) -> None:
    """Wait for the next look at the database."""
    polled = asyncio.Event()
    manager.on_poll = polled.set
    async with asyncio.timeout(60):
        await polled.wait()


def test_what_another_program_changes_is_seen_by_the_next_poll(tmp_path: Path) -> None:
    with open_store(tmp_path) as server, open_store(tmp_path) as cli:
        asyncio.run(_follow(server, cli))


@pytest.mark.databases
def test_the_same_over_postgresql(postgres_server: PostgresServer) -> None:
    url = postgres_server.url("followed")
    with open_store(url) as server, open_store(url) as cli:
        asyncio.run(_follow(server, cli))


async def _follow(server: KeyStore, cli: KeyStore) -> None:
    async with started(server) as manager:
        record, key = cli.create_key("acme", {}, BOSS)
        assert manager.keys.identify(key.encode()) is None
        await poll(manager)
        assert manager.keys.identify(key.encode()) is not None
        cli.revoke_key(record.id, BOSS)
        await poll(manager)
        with pytest.raises(KeyRevoked):
            manager.keys.identify(key.encode())


def test_an_own_change_acts_when_it_returns(tmp_path: Path) -> None:
    async def run(store: KeyStore) -> None:
        async with started(store) as manager:
            polled: list[int] = []
            manager.on_poll = lambda: polled.append(manager.keys.number)
            record, _ = await manager.change(store.create_key, "acme", {}, BOSS)
            assert manager.keys.find(record.id).tenant == "acme"
            await manager.change(store.revoke_key, record.id, BOSS)
            assert polled[-1] == manager.keys.number
            with pytest.raises(KeyRevoked):
                manager.keys.find(record.id)

    with open_store(tmp_path) as store:
        asyncio.run(run(store))


def test_known_keys_stay_valid_while_the_database_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(store: KeyStore) -> None:
        async with started(store) as manager:
            _, key = await manager.change(store.create_key, "acme", {}, BOSS)
            changes_since, away = store.changes_since, True

            def read(number: int) -> object:
                if away:
                    raise StorageUnavailable("away")
                return changes_since(number)

            monkeypatch.setattr(store, "changes_since", read)
            await poll(manager)
            assert not manager.available
            assert manager.keys.identify(key.encode()) is not None
            away = False
            await poll(manager)
            assert manager.available

    with open_store(tmp_path) as store:
        asyncio.run(run(store))
