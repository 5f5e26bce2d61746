from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.key_stores import BOSS, Clock, fill_store, load_keys, open_store
from helpers.postgresql import PostgresServer
from penstock.errors import InvalidRequest, NotFound
from penstock.gateway.keys.identity import Limits, Scope
from penstock.gateway.keys.records import EVERYTHING, KeyRecord, Wanted
from penstock.gateway.keys.store import KeyStore

ALL_FIELDS: dict[str, Any] = {
    "name": "Jürgen's", "scopes": ["admin", "inference"], "models": ["b", "a:latest"], "tier": "bulk",
    "requests_per_minute": 5, "tokens_per_minute": 6, "concurrent_requests": 7, "usd_per_day": 0.1,
    "usd_per_month": 12.345678, "default_max_tokens": 8, "max_tokens": 9, "expires_at": 1_900_000_000,
}  # fmt: skip


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[KeyStore]:
    with open_store(tmp_path, clock) as opened:
        yield opened


def test_a_key_has_what_was_set_and_its_hash_alone(store: KeyStore, clock: Clock, tmp_path: Path) -> None:
    record, key = store.create_key("acme", ALL_FIELDS, BOSS)
    assert store.key(record.id) == record
    assert record.fields == store.keys(Wanted(tenant="acme"))[0].fields
    assert record.limits == Limits(
        requests_per_minute=5, tokens_per_minute=6, concurrent_requests=7, microusd_per_day=100_000,
        microusd_per_month=12_345_678,
    )  # fmt: skip
    identity = load_keys(store, clock).identify(key.encode())
    assert identity is not None
    assert (identity.tenant, identity.key, identity.tier) == ("acme", record.id, "bulk")
    assert (identity.scopes, identity.models) == ({Scope.ADMIN, Scope.INFERENCE}, {"a:latest", "b"})
    assert (identity.default_max_tokens, identity.max_tokens, identity.expires) == (8, 9, 1_900_000_000)
    assert key.startswith(f"sk-penstock-{record.id}-")
    secret = key.rpartition("-")[2].encode()
    assert len(secret) == 43
    assert all(secret not in path.read_bytes() for path in tmp_path.iterdir())


def test_keys_differ(store: KeyStore) -> None:
    made = [store.create_key("acme", {}, BOSS) for _ in range(20)]
    assert len({record.id for record, _ in made}) == len({key.rpartition("-")[2] for _, key in made}) == 20


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"scopes": []}, "scopes"),
        ({"scopes": ["root"]}, "scopes[0]"),
        ({"scopes": "admin"}, "scopes"),
        ({"models": []}, "models"),
        ({"models": ["a\x00b"]}, "models"),
        ({"tier": "gold"}, "tier"),
        ({"requests_per_minute": 0}, "requests_per_minute"),
        ({"tokens_per_minute": -1}, "tokens_per_minute"),
        ({"tokens_per_minute": 2**60}, "tokens_per_minute"),
        ({"concurrent_requests": 1.5}, "concurrent_requests"),
        ({"usd_per_day": -0.1}, "usd_per_day"),
        ({"usd_per_month": "ten"}, "usd_per_month"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 4, "default_max_tokens": 5}, "default_max_tokens"),
        ({"expires_at": 1_700_000_000}, "expires_at"),
        ({"name": "a\nb"}, "name"),
        ({"name": "\ud800"}, "name"),
        ({"name": "n" * 129}, "name"),
        ({"hash": "x"}, "hash"),
        ({"id": "x"}, "id"),
    ],
)
def test_wrong_fields_are_named(store: KeyStore, values: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        store.create_key("acme", values, BOSS)
    assert error.value.param == param
    assert param in error.value.message
    record, _ = store.create_key("acme", {}, BOSS)
    with pytest.raises(InvalidRequest):
        store.update_key(record.id, values, BOSS)


@pytest.mark.parametrize("tenant", ["", "-a", "a" * 65, "a b", "a\x00", "ä", "a/b", "'; DROP TABLE keys; --", None, 3])
def test_tenant_names_are_plain(store: KeyStore, tenant: Any) -> None:
    with pytest.raises(InvalidRequest) as error:
        store.create_key(tenant, {}, BOSS)
    assert error.value.param == "tenant"
    assert store.keys() == store.tenants() == []


@pytest.mark.parametrize("name", ["", "000000000000", "' OR 1=1 --", "a\x00b", "ü" * 12, "x" * 100_000])
def test_unknown_keys_and_tenants_are_not_found(store: KeyStore, name: str) -> None:
    store.create_key("acme", {}, BOSS)
    for call in (store.key, store.tenant):
        with pytest.raises(NotFound):
            call(name)
    for change in (store.update_key, store.update_tenant):
        with pytest.raises(NotFound):
            change(name, {}, BOSS)
    with pytest.raises(NotFound):
        store.revoke_key(name, BOSS)
    with pytest.raises(NotFound):
        store.rotate_key(name, 0, BOSS)
    assert len(store.keys()) == 1


def test_an_update_changes_what_it_names(store: KeyStore) -> None:
    record, _ = store.create_key("acme", ALL_FIELDS, BOSS)
    changed = store.update_key(record.id, {"tokens_per_minute": None, "name": "other"}, BOSS)
    assert changed.limits.tokens_per_minute is None
    assert changed.name == "other"
    assert (changed.limits.microusd_per_day, changed.models, changed.hash) == (100_000, ("a:latest", "b"), record.hash)
    assert store.audit.entries(limit=1)[0].details == {"tokens_per_minute": [6, None], "name": ["Jürgen's", "other"]}


def test_a_key_that_has_expired_can_be_changed_otherwise(store: KeyStore, clock: Clock) -> None:
    record, _ = store.create_key("acme", {"expires_at": int(clock.now) + 5}, BOSS)
    clock.now += 10
    assert store.update_key(record.id, {"name": "old"}, BOSS).state(clock.now) == "expired"
    assert store.update_key(record.id, {"expires_at": None}, BOSS).state(clock.now) == "active"


def test_tenants_have_limits_and_weight_of_their_own(store: KeyStore, clock: Clock) -> None:
    store.create_tenant("acme", {"weight": 2.5, "tokens_per_minute": 100}, BOSS)
    _, key = store.create_key("acme", {"tokens_per_minute": 10}, BOSS)
    keys = load_keys(store, clock)
    identity = keys.identify(key.encode())
    assert identity is not None
    assert (identity.weight, identity.key_limits.tokens_per_minute) == (2.5, 10)
    assert identity.tenant_limits.tokens_per_minute == 100
    store.update_tenant("acme", {"tokens_per_minute": 200, "usd_per_month": 3}, BOSS)
    keys.apply(store.changes_since(keys.number))
    assert keys.find(identity.key).tenant_limits == Limits(tokens_per_minute=200, microusd_per_month=3_000_000)
    with pytest.raises(InvalidRequest, match="exists already"):
        store.create_tenant("acme", {}, BOSS)
    for wrong in ({"weight": 0}, {"weight": float("nan")}, {"scopes": ["admin"]}):
        with pytest.raises(InvalidRequest):
            store.update_tenant("acme", wrong, BOSS)


def test_the_audit_log_has_every_change_in_order_and_no_secret(store: KeyStore) -> None:
    record, key = store.create_key("acme", {"name": "first"}, BOSS)
    store.update_key(record.id, {"tier": "bulk"}, BOSS)
    _, rotated = store.rotate_key(record.id, 60, BOSS)
    store.revoke_key(record.id, BOSS)
    store.update_tenant("acme", {"weight": 2.0}, BOSS)
    entries = store.audit.entries(limit=100)
    assert [entry.action for entry in reversed(entries)] == [
        "tenant.create", "key.create", "key.update", "key.rotate", "key.revoke", "tenant.update",
    ]  # fmt: skip
    assert {entry.actor for entry in entries} == {"cli:boss"}
    assert {entry.outcome for entry in entries} == {"ok"}
    shown = repr(entries)
    assert all(text.rpartition("-")[2] not in shown for text in (key, rotated))
    assert [entry.id for entry in store.audit.entries(limit=2, before=entries[0].id)] == [
        entry.id for entry in entries[1:3]
    ]
    assert [entry.action for entry in store.audit.entries(limit=9, target="acme")] == ["tenant.update", "tenant.create"]


def test_a_change_that_fails_leaves_no_trace(store: KeyStore) -> None:
    record, _ = store.create_key("acme", {}, BOSS)
    before = store.changes_since(-1), store.audit.entries(limit=100)
    with pytest.raises(InvalidRequest):
        store.update_key(record.id, {"tier": "gold"}, BOSS)
    assert (store.changes_since(-1), store.audit.entries(limit=100)) == before


def test_changes_are_seen_once(store: KeyStore) -> None:
    first, _ = store.create_key("acme", {}, BOSS)
    seen = store.changes_since(-1)
    assert ([one.id for one in seen.keys], [one.name for one in seen.tenants]) == ([first.id], ["acme"])
    assert store.changes_since(seen.number).keys == ()
    second, _ = store.create_key("acme", {}, BOSS)
    later = store.changes_since(seen.number)
    assert ([one.id for one in later.keys], later.tenants) == ([second.id], [])


def read_pages(store: KeyStore, limit: int) -> list[tuple[str, str]]:
    """All keys, a page at a time."""
    found: list[tuple[str, str]] = []
    while page := store.keys(after=found[-1][1] if found else None, limit=limit):
        assert len(page) <= limit
        found += [(one.tenant, one.id) for one in page]
    return found


@pytest.mark.databases
def test_pages_over_postgresql(postgres_server: PostgresServer) -> None:
    """Whose order of names may be another one than Python's."""
    names = ("B", "a", "a-b", "a.b", "ab", "C")
    with open_store(postgres_server.url("pages")) as store:
        ids = fill_store(store, dict.fromkeys(names, 7))
        everything = [(one.tenant, one.id) for one in store.keys(EVERYTHING)]
        assert sorted(everything) == sorted(ids)
        assert read_pages(store, 4) == everything
        owners: list[str] = []
        while page := store.owners(EVERYTHING, after=owners[-1] if owners else None, limit=5):
            owners += [f"{one.tenant}/{one.id}" if isinstance(one, KeyRecord) else one.name for one in page]
        assert [one for one in owners if "/" in one] == [f"{tenant}/{key}" for tenant, key in everything]
        assert [one for one in owners if "/" not in one] == [one.name for one in store.tenants()]
        assert sorted(owners) == sorted([*names, *(f"{tenant}/{key}" for tenant, key in ids)])
        assert len(store.keys(Wanted(search="A-"))) == 7
        with pytest.raises(InvalidRequest, match="search"):
            store.keys(Wanted(search="a\x00b"))


@pytest.mark.databases
def test_the_same_over_postgresql(postgres_server: PostgresServer) -> None:
    """What depends on the database: types, NUL, concurrent changes."""
    clock = Clock()
    with open_store(postgres_server.url("keys"), clock) as store:
        record, key = store.create_key("acme", ALL_FIELDS, BOSS)
        assert store.key(record.id) == record
        assert load_keys(store, clock).identify(key.encode()) is not None
        with pytest.raises(NotFound):
            store.key("a\x00b")
        assert store.audit.entries(limit=9, target="a\x00b") == []
        store.audit.begin(BOSS, "model.add", "a\x00b\ud800", {"model": "\x00"})
        assert store.audit.entries(limit=1)[0].target == "a\\x00b\\ud800"
        assert store.update_key(record.id, {"tokens_per_minute": 2**53}, BOSS).limits.tokens_per_minute == 2**53
        assert store.revoke_key(record.id, BOSS).revoked == clock.now
