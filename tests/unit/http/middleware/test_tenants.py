from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.gateway.keys.configured import ConfiguredKeys, tenant_of_key
from penstock.gateway.keys.directory import NoKeys
from penstock.gateway.keys.identity import ANONYMOUS
from penstock.http.middleware.auth import ApiKeyMiddleware
from penstock.http.middleware.tenants import tenant_of

ONE, TWO = (tenant_of_key(key) for key in (b"one", b"two"))


def tenant(keys: list[str], path: str = "/v1/models", **headers: str) -> str:
    """As a route behind the guard sees it."""
    seen: list[str] = []

    async def route(scope: Any, receive: Any, send: Any) -> None:
        seen.append(tenant_of(scope))

    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "headers": named, "state": {}}
    directory = ConfiguredKeys(keys) if keys else NoKeys()
    asyncio.run(ApiKeyMiddleware(route, directory)(scope, None, None))  # type: ignore[arg-type]
    return seen[0]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"authorization": "Bearer one"}, ONE),
        ({"authorization": "bearer  two "}, TWO),
        ({"x_api_key": "two"}, TWO),
        ({"x_api_key": "two", "authorization": "Bearer one"}, TWO),
        ({"x_api_key": "wrong", "authorization": "Bearer one"}, ONE),
    ],
)
def test_each_key_is_a_tenant_however_it_is_sent(headers: dict[str, str], expected: str) -> None:
    assert tenant(["one", "two"], **headers) == expected
    assert tenant(["two", "three", "one"], **headers) == expected  # whatever keys there are beside it


def test_a_server_without_keys_has_one_tenant() -> None:
    assert {tenant([]), tenant([], authorization="Bearer one"), tenant([], x_api_key="two")} == {ANONYMOUS.tenant}


def test_without_a_key_there_is_no_tenant() -> None:
    """On paths that need none; what belongs to somebody fails there."""
    with pytest.raises(KeyError):
        tenant(["one"], "/health")
