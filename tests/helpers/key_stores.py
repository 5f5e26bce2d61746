"""Stores of keys for tests: a clock that can be set, and an actor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from penstock.database.database import open_database
from penstock.gateway.keys.audit import Actor
from penstock.gateway.keys.key_format import new_id
from penstock.gateway.keys.store import KeyStore
from penstock.gateway.keys.stored_keys import StoredKeys
from penstock.gateway.keys.tables import keys as key_table
from penstock.gateway.keys.tables import tenants as tenant_table

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


def fill_store(store: KeyStore, tenants: Mapping[str, int]) -> list[tuple[str, str]]:
    """Tenants with so many keys each, inserted at once. Tenants and ids, in the order of lists."""
    template, _ = store.create_key("template", {}, BOSS)
    named = {"created": 1.0, "changed": 1}
    with store._database.write() as connection:
        (key,) = connection.execute(key_table.select().where(key_table.c.id == template.id)).mappings()
        connection.execute(key_table.delete())
        connection.execute(tenant_table.delete())
        connection.execute(tenant_table.insert(), [{"name": name, "weight": 1.0, **named} for name in tenants])
        rows = [
            {**key, "id": new_id(), "tenant": name, "created": float(number // 3)}
            for name, count in tenants.items()
            for number in range(count)
        ]
        if rows:
            connection.execute(key_table.insert(), rows)
    return [
        (one["tenant"], one["id"]) for one in sorted(rows, key=lambda row: (row["tenant"], row["created"], row["id"]))
    ]


def load_keys(store: KeyStore, clock: Clock) -> StoredKeys:
    """As a server has them after a start."""
    found = StoredKeys(clock)
    found.apply(store.changes_since(found.number))
    return found
