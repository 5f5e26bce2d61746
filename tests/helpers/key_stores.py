"""Stores of keys for tests: a clock that can be set, and an actor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.database.database import open_database
from penstock.gateway.keys.audit import Actor
from penstock.gateway.keys.store import KeyStore
from penstock.gateway.keys.stored_keys import StoredKeys

BOSS = Actor("cli:boss")


class Clock:
    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@contextmanager
def open_store(place: Path | str, clock: Clock | None = None) -> Iterator[KeyStore]:
    """In a folder, or by a URL."""
    database = open_database(place if isinstance(place, str) else f"sqlite:///{place / 'tenants.db'}")
    try:
        yield KeyStore(database, clock or Clock())
    finally:
        database.close()


def load_keys(store: KeyStore, clock: Clock) -> StoredKeys:
    """As a server has them after a start."""
    found = StoredKeys(clock)
    found.apply(store.changes_since(found.number))
    return found
