from __future__ import annotations

import threading

import msgspec
import pytest

from penstock.errors import NotFound
from penstock.http.response_store import ResponseStore, StoredResponse

SAID = [{"role": "user", "content": "Hi 🦙"}]


def kept(body: bytes = b"{}") -> StoredResponse:
    return StoredResponse(body, msgspec.json.encode(SAID), items=b"[1]", pieces=b"[[]]")


def test_what_is_kept_comes_back() -> None:
    store = ResponseStore()
    store.put("", "a", kept())

    assert store.get("", "a") == kept()
    assert store.get("", "a").messages() == SAID
    assert store.num_bytes == len(b"{}" + msgspec.json.encode(SAID) + b"[1]" + b"[[]]")


def test_those_not_used_for_longest_make_room() -> None:
    store = ResponseStore(max_responses=2)
    for name in ("a", "b"):
        store.put("", name, kept(name.encode()))
    store.get("", "a")
    store.put("", "c", kept(b"c"))

    assert (store.get("", "a").body, store.get("", "c").body, len(store)) == (b"a", b"c", 2)
    with pytest.raises(NotFound, match="evicted") as caught:
        store.get("", "b", param="previous_response_id")
    assert caught.value.param == "previous_response_id"


def test_threads_take_turns() -> None:
    """Long answers are written in threads, and what is written is kept there."""
    store = ResponseStore()
    other = threading.Thread(target=store.put, args=("", "b", kept()))

    class Slow(StoredResponse, frozen=True):
        @property
        def size(self) -> int:
            if other.ident is None:
                other.start()
                other.join(0.05)
                assert other.is_alive()  # it waits
            return 1

    store.put("", "a", Slow(b"", b""))
    other.join()
    assert (len(store), store.num_bytes) == (2, 1 + kept().size)


def test_bytes_are_bounded_too() -> None:
    store = ResponseStore(max_bytes=1000)
    for name in "abcdef":
        store.put("", name, kept(b"x" * 300))
        assert store.num_bytes <= 1000
    assert 0 < len(store) < 4
    store.put("", "huge", kept(b"x" * 2000))
    assert (len(store), store.num_bytes) == (0, 0)


def test_dropped() -> None:
    store = ResponseStore()
    store.put("", "a", kept())
    store.delete("", "a")

    assert store.num_bytes == 0
    for use in (store.delete, store.get):
        with pytest.raises(NotFound):
            use("", "a")


def test_a_response_is_its_tenants_alone() -> None:
    store = ResponseStore()
    store.put("alice", "a", kept())
    for tenant in ("bob", ""):
        for use in (store.delete, store.get):
            with pytest.raises(NotFound) as caught:
                use(tenant, "a")
            with pytest.raises(NotFound) as unknown:
                use(tenant, "b")
            assert str(caught.value) == str(unknown.value).replace("'b'", "'a'")  # as if it did not exist
    assert store.get("alice", "a").messages() == SAID


def test_nobody_pushes_out_what_another_keeps() -> None:
    for store in (ResponseStore(max_responses=4), ResponseStore(max_bytes=1000)):
        store.put("alice", "a", kept(b"x" * 100))
        for place in range(20):
            store.put("bob", str(place), kept(b"x" * 100))
        assert len(store.get("alice", "a").body) == 100
        assert len(store.get("bob", "19").body) == 100
        with pytest.raises(NotFound):
            store.get("bob", "0")
