"""The ways of giving a key."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.intake.guards import Keys, RequestIds


def status(*headers: tuple[str, str]) -> tuple[int, dict[bytes, bytes]]:
    """Of a server that has the keys "one" and "two", and its headers."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/v1/models",
        "raw_path": b"/v1/models",
        "headers": [(name.encode(), value.encode()) for name, value in headers],
    }
    asyncio.run(RequestIds(Keys(app, ["one", "two"]))(scope, None, send))  # type: ignore[arg-type]
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
