"""An app behind the middleware of a server that has the API keys "one" and "two"."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.gateway.keys.configured import ConfiguredKeys
from penstock.http.middleware.auth import ApiKeyMiddleware
from penstock.http.middleware.cors import cors
from penstock.http.middleware.request_id import RequestIdMiddleware

PAGE = "https://app.example"  # an allowed origin


def request(
    *headers: tuple[str, str], method: str = "GET", origins: tuple[str, ...] = (PAGE,)
) -> tuple[int, dict[bytes, bytes]]:
    """Status and headers of the response."""
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
    guarded = RequestIdMiddleware(cors(ApiKeyMiddleware(app, ConfiguredKeys(["one", "two"])), origins))
    asyncio.run(guarded(scope, None, send))  # type: ignore[arg-type]
    return sent[0]["status"], dict(sent[0]["headers"])
