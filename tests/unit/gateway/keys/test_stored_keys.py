from __future__ import annotations

import hmac
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.key_stores import BOSS, Clock, load_keys, open_store
from penstock.errors import KeyExpired, KeyRevoked, Unauthorized
from penstock.gateway.keys import stored_keys
from penstock.gateway.keys.store import KeyStore

HOSTILE = [
    b"",
    b"sk-penstock-",
    b"sk-penstock-' OR '1'='1-" + b"A" * 43,
    b"' OR 1=1 --",
    b"sk-penstock-%s-%s" % (b"0" * 12, b"A" * 43),
    b"sk-penstock-%s-%s" % (b"0" * 12, b"A" * 42),
    b"sk-penstock-\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00-" + b"A" * 43,
    "sk-penstock-ёёёёёё-".encode() + b"A" * 43,
    b"\xff\xfe" * 30,
    b"A" * 64_000,
    b"sk-penstock-" * 5_000,
]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[KeyStore]:
    with open_store(tmp_path, clock) as opened:
        yield opened


def test_hostile_keys_are_unknown(store: KeyStore, clock: Clock) -> None:
    _, key = store.create_key("acme", {}, BOSS)
    good = key.encode()
    keys = load_keys(store, clock)
    close = [good[:-1], good + b"A", good + b"\x00", good + b"\n", b" " + good, good.upper(), good[:-1] + b"!"]
    assert [keys.identify(one) for one in HOSTILE + close] == [None] * (len(HOSTILE) + len(close))
    assert keys.identify(good) is not None


def test_unknown_ids_take_the_same_work_as_known_ones(
    store: KeyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, key = store.create_key("acme", {}, BOSS)
    keys, work = load_keys(store, clock), list[str]()

    def compare(one: bytes, other: bytes) -> bool:
        work.append(f"compare {len(one)} {len(other)}")
        return compare_digest(one, other)

    def hashed(one: bytes) -> bytes:
        work.append(f"hash {len(one)}")
        return original(one)

    original, compare_digest = stored_keys.key_hash, hmac.compare_digest
    monkeypatch.setattr(stored_keys.hmac, "compare_digest", compare)
    monkeypatch.setattr(stored_keys, "key_hash", hashed)
    done = []
    for sent in (key, f"sk-penstock-{record.id}-{'A' * 43}", f"sk-penstock-{'0' * 12}-{'A' * 43}", "x" * len(key)):
        work.clear()
        keys.identify(sent.encode())
        done.append(list(work))
    assert done == [[f"hash {len(key)}", "compare 32 32", "compare 32 32"]] * 4


def test_a_revoked_key_says_so_to_its_owner_alone(store: KeyStore, clock: Clock) -> None:
    record, key = store.create_key("acme", {}, BOSS)
    store.revoke_key(record.id, BOSS)
    keys = load_keys(store, clock)
    with pytest.raises(KeyRevoked):
        keys.identify(key.encode())
    with pytest.raises(KeyRevoked):
        keys.find(record.id)
    assert keys.identify(f"sk-penstock-{record.id}-{'A' * 43}".encode()) is None
    with pytest.raises(Unauthorized):
        keys.find("000000000000")


def test_a_key_expires_by_itself(store: KeyStore, clock: Clock) -> None:
    record, key = store.create_key("acme", {"expires_at": int(clock.now) + 10}, BOSS)
    keys = load_keys(store, clock)
    clock.now += 9.9
    assert keys.identify(key.encode()) is not None
    clock.now += 0.1
    for call in (lambda: keys.identify(key.encode()), lambda: keys.find(record.id)):
        with pytest.raises(KeyExpired):
            call()


@pytest.mark.parametrize("grace_s", [0, 60])
def test_the_key_before_a_rotation_is_valid_for_its_grace_period(store: KeyStore, clock: Clock, grace_s: float) -> None:
    record, old = store.create_key("acme", {"name": "kept"}, BOSS)
    rotated, new = store.rotate_key(record.id, grace_s, BOSS)
    assert (rotated.id, rotated.name, rotated.tenant) == (record.id, "kept", "acme")
    keys = load_keys(store, clock)
    assert keys.identify(new.encode()) is not None
    assert (keys.identify(old.encode()) is not None) == (grace_s > 0)
    clock.now += grace_s
    assert keys.identify(old.encode()) is None
    assert keys.identify(new.encode()) is not None


def test_revocation_ends_a_grace_period_too(store: KeyStore, clock: Clock) -> None:
    record, old = store.create_key("acme", {}, BOSS)
    _, new = store.rotate_key(record.id, 60, BOSS)
    store.revoke_key(record.id, BOSS)
    keys = load_keys(store, clock)
    assert keys.identify(old.encode()) is None
    with pytest.raises(KeyRevoked):
        keys.identify(new.encode())


def test_changes_are_applied_to_what_is_known(store: KeyStore, clock: Clock) -> None:
    record, key = store.create_key("acme", {}, BOSS)
    keys = load_keys(store, clock)
    other, other_key = store.create_key("beta", {}, BOSS)
    assert keys.identify(other_key.encode()) is None
    keys.apply(store.changes_since(keys.number))
    assert keys.find(other.id).tenant == "beta"
    store.revoke_key(record.id, BOSS)
    keys.apply(store.changes_since(keys.number))
    with pytest.raises(KeyRevoked):
        keys.identify(key.encode())
    assert len(keys) == 2
