from __future__ import annotations

import pytest

from penstock.errors import InvalidSetting
from penstock.settings import load


@pytest.mark.parametrize("address", ["tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://[::1]:5557", "tcp://router.lan:1"])
def test_an_address_has_a_host_and_a_port(address: str) -> None:
    assert load({"kv_events": address}, environ={}).cache.kv_events == address


@pytest.mark.parametrize("address", ["", "router:5557", "ipc://x", "tcp://*", "tcp://a b:1", "tcp://host:123456"])
def test_another_address_is_an_error_that_shows_a_right_one(address: str) -> None:
    with pytest.raises(
        InvalidSetting, match=r"kv_events must be an address such as tcp://127\.0\.0\.1:5557, got"
    ) as error:
        load({"kv_events": address}, environ={})
    assert error.value.param == "kv_events"


def test_without_a_prefix_cache_there_are_no_events() -> None:
    with pytest.raises(InvalidSetting, match="without prefix_caching no block stays cached"):
        load({"kv_events": "tcp://*:5557", "prefix_caching": False}, environ={})


def test_each_replica_has_a_port_of_its_own() -> None:
    cache = load({"kv_events": "tcp://*:5557"}, environ={}).cache
    assert [cache.for_replica(number).kv_events for number in range(3)] == [
        f"tcp://*:{port}" for port in (5557, 5558, 5559)
    ]
