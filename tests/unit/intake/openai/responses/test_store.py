from __future__ import annotations

import pytest

from penstock.errors import NotFound
from penstock.intake.openai.responses.store import ResponseStore

SAID = [{"role": "user", "content": "Hi 🦙"}]


def test_what_is_kept_comes_back() -> None:
    store = ResponseStore()
    store.keep("", "a", b"{}", SAID)

    assert store.body("", "a") == b"{}"
    assert store.said("", "a") == SAID


def test_those_not_used_for_longest_make_room() -> None:
    store = ResponseStore(max_responses=2)
    for name in ("a", "b"):
        store.keep("", name, name.encode(), SAID)
    store.said("", "a")
    store.keep("", "c", b"c", SAID)

    assert (store.body("", "a"), store.body("", "c"), len(store)) == (b"a", b"c", 2)
    with pytest.raises(NotFound, match="made room") as caught:
        store.said("", "b")
    assert caught.value.param == "previous_response_id"


def test_bytes_are_bounded_too() -> None:
    store = ResponseStore(max_bytes=1000)
    for name in "abcdef":
        store.keep("", name, b"x" * 300, SAID)
        assert store.num_bytes <= 1000
    assert 0 < len(store) < 4
    store.keep("", "huge", b"x" * 2000, SAID)
    assert (len(store), store.num_bytes) == (0, 0)


def test_dropped() -> None:
    store = ResponseStore()
    store.keep("", "a", b"{}", SAID)
    store.drop("", "a")

    assert store.num_bytes == 0
    for use in (store.drop, store.body, store.said):
        with pytest.raises(NotFound):
            use("", "a")


def test_a_response_is_its_tenants_alone() -> None:
    store = ResponseStore()
    store.keep("alice", "a", b"{}", SAID)
    for tenant in ("bob", ""):
        for use in (store.drop, store.body, store.said):
            with pytest.raises(NotFound) as caught:
                use(tenant, "a")
            with pytest.raises(NotFound) as unknown:
                use(tenant, "b")
            assert str(caught.value) == str(unknown.value).replace("'b'", "'a'")  # as if it did not exist
    assert store.said("alice", "a") == SAID


def test_nobody_pushes_out_what_another_keeps() -> None:
    for store in (ResponseStore(max_responses=4), ResponseStore(max_bytes=1000)):
        store.keep("alice", "a", b"x" * 100, SAID)
        for place in range(20):
            store.keep("bob", str(place), b"x" * 100, SAID)
        assert len(store.body("alice", "a")) == 100
        assert len(store.body("bob", "19")) == 100
        with pytest.raises(NotFound):
            store.body("bob", "0")
