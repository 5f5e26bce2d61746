"""The adapters in memory: bounded in bytes, the least recently used go first, those in use stay."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from penstock.adapters import AdapterCache, AdapterLoader
from penstock.errors import AdapterLoadFailed, PenstockError
from penstock.flow import Adapter


class Weights(NamedTuple):
    num_bytes: int


def adapter(name: str, rank: int = 1) -> Adapter:
    return Adapter(name, "00", f"/{name}", rank)


def load(one: Adapter) -> Weights:
    if one.name == "missing":
        raise AdapterLoadFailed("no such file")
    if one.name == "broken":
        raise ZeroDivisionError
    return Weights(10 * one.rank)


def make(capacity: int) -> AdapterCache[Weights]:
    return AdapterCache(AdapterLoader(load), lambda one: 12 * one.rank, capacity)


def fetch(cache: AdapterCache[Weights], one: Adapter, *pinned: str) -> PenstockError | None:
    assert cache.start(one)
    found = cache.take_finished(wait_s=10.0)
    cache.check_integrity({(name, "00"): 1 for name in pinned})
    return found[0][1]


def resident(cache: AdapterCache[Weights]) -> set[str]:
    return {one["name"] for one in cache.describe() if one["state"] == "resident"}


def test_the_least_recently_used_makes_room() -> None:
    cache = make(31)
    for name in "ab":
        assert fetch(cache, adapter(name)) is None
    cache.pin(adapter("a"))
    cache.unpin(adapter("a"))
    assert fetch(cache, adapter("c")) is None
    assert resident(cache) == {"a", "c"}
    assert {one["name"]: (one["state"], one["hits"], one["loads"]) for one in cache.describe()} == {
        "a": ("resident", 1, 1),
        "b": ("evicted", 0, 1),
        "c": ("resident", 0, 1),
    }


def test_those_in_use_stay() -> None:
    cache = make(31)
    for name, pinned in (("a", ""), ("b", "a")):
        fetch(cache, adapter(name), *pinned)
        cache.pin(adapter(name))
    assert not cache.start(adapter("c"))
    assert cache.forget("a", "00") == {"forgotten": False, "in_use": True}
    cache.unpin(adapter("b"))
    assert not cache.start(adapter("large", rank=3))  # nothing goes for what does not fit even then
    assert resident(cache) == {"a", "b"}
    cache.check_integrity({("a", "00"): 1})
    assert fetch(cache, adapter("c"), "a") is None
    assert resident(cache) == {"a", "c"}
    with pytest.raises(PenstockError):
        cache.check_integrity({})


@pytest.mark.parametrize("name", ["missing", "broken"])
def test_a_failure_is_told_and_may_be_tried_again(name: str) -> None:
    cache = make(31)
    error = fetch(cache, adapter(name))
    assert isinstance(error, AdapterLoadFailed)
    assert cache.describe()[0]["state"] == "failed"
    assert cache.describe()[0]["error"] == error.message
    assert cache.num_bytes == 0
    assert fetch(cache, adapter(name)) is not None
    assert cache.forget(name, "00")["forgotten"]
    assert cache.describe() == []


def test_what_exceeds_the_memory_is_refused() -> None:
    cache = make(31)
    error = fetch(cache, adapter("large", rank=4))
    assert error is not None
    assert "adapter_memory" in error.message
