"""The ways of giving a key, and what pages of other origins may do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.http.middleware.guards import Keys, RequestIds, shared

PAGE = "https://app.example"


def status(
    *headers: tuple[str, str], method: str = "GET", origins: tuple[str, ...] = (PAGE,)
) -> tuple[int, dict[bytes, bytes]]:
    """Of a server that has the keys "one" and "two", and its headers."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": "/v1/models",
        "raw_path": b"/v1/models",
        "headers": [(name.encode(), value.encode()) for name, value in headers],
    }
    guarded = RequestIds(shared(Keys(app, ["one", "two"]), origins))
    asyncio.run(guarded(scope, None, send))  # type: ignore[arg-type]
    return sent[0]["status"], dict(sent[0]["headers"])


@pytest.mark.parametrize(
    "headers",
    [
        [("authorization", "Bearer one")],
        [("authorization", "bearer  two ")],
        [("x-api-key", "one")],
        [("x-api-key", "two"), ("authorization", "Bearer wrong")],
        [("x-api-key", "wrong"), ("authorization", "Bearer one")],
    ],
)
def test_let_in(headers: list[tuple[str, str]]) -> None:
    assert status(*headers)[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", "Bearer")],
        [("authorization", "Bearer three")],
        [("authorization", "Basic one")],
        [("authorization", "one")],
        [("x-api-key", "")],
        [("x-api-key", "Bearer one")],
        [("x-api-key", "on")],
    ],
)
def test_kept_out(headers: list[tuple[str, str]]) -> None:
    assert status(*headers)[0] == 401


def test_the_id_of_a_request_is_where_either_kind_of_client_looks_for_it() -> None:
    _, headers = status(("x-api-key", "one"), ("x-request-id", "mine"))

    assert (headers[b"x-request-id"], headers[b"request-id"]) == (b"mine", b"mine")


def asked_first(origin: str, method: str = "POST", **kwargs: Any) -> tuple[int, dict[bytes, bytes]]:
    """As a browser asks, without a key, before it lets a page send what the SDKs send."""
    headers = [
        ("origin", origin),
        ("access-control-request-method", method),
        ("access-control-request-headers", "authorization,content-type,x-stainless-lang,anthropic-version"),
        ("access-control-request-private-network", "true"),
    ]
    return status(*headers, method="OPTIONS", **kwargs)


@pytest.mark.parametrize(("origins", "told"), [((PAGE,), PAGE.encode()), (("*",), b"*")])
def test_a_browser_is_told_that_a_page_may_call(origins: tuple[str, ...], told: bytes) -> None:
    code, headers = asked_first(PAGE, origins=origins)

    assert (code, headers[b"access-control-allow-origin"]) == (200, told)
    assert b"anthropic-version" in headers[b"access-control-allow-headers"]
    assert headers[b"access-control-allow-private-network"] == b"true"
    assert {b"POST", b"DELETE"} <= set(headers[b"access-control-allow-methods"].split(b", "))

    code, headers = status(("origin", PAGE), ("x-api-key", "one"), origins=origins)
    assert (code, headers[b"access-control-allow-origin"]) == (200, told)
    assert {b"x-request-id", b"request-id", b"retry-after"} <= set(
        headers[b"access-control-expose-headers"].split(b", ")
    )
    assert b"access-control-allow-credentials" not in headers


def test_a_page_can_read_that_its_key_is_wrong() -> None:
    code, headers = status(("origin", PAGE), ("x-api-key", "three"))
    assert (code, headers[b"access-control-allow-origin"]) == (401, PAGE.encode())


def test_pages_of_other_origins_may_not() -> None:
    for origin in ("https://app.example:8443", "http://app.example", "https://other.example", "null"):
        code, headers = asked_first(origin)
        assert code == 400
        assert b"access-control-allow-origin" not in headers
        assert b"access-control-allow-origin" not in status(("origin", origin), ("x-api-key", "one"))[1]
    assert asked_first(PAGE, "PUT")[0] == 400


def test_without_the_setting_no_page_may_and_asking_needs_a_key() -> None:
    code, headers = asked_first(PAGE, origins=())
    assert code == 401
    assert not [name for name in headers if name.startswith(b"access-control")]
