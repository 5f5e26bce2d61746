from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.frontends.gate import HEADER, FrontendGate


@pytest.mark.parametrize(
    ("method", "path", "wanted"),
    [
        ("POST", "/v1/chat/completions", "own"),
        ("POST", "/chat/completions", "own"),
        ("POST", "/v1/responses", "own"),
        ("GET", "/v1/chat/completions", "control"),  # the list of stored ones
        ("GET", "/v1/responses/resp_1", "control"),
        ("POST", "/v1/responses/resp_1/cancel", "control"),
        ("POST", "/v1/batches", "control"),
        ("POST", "/v1/chat/completions/", "control"),
        ("GET", "/metrics", "control"),
    ],
)
def test_a_frontend_answers_what_generates_and_passes_on_the_rest(method: str, path: str, wanted: str) -> None:
    asked, sent = [], list[Any]()

    def app(name: str) -> Any:
        async def answer(scope: Any, receive: Any, send: Any) -> None:
            asked.append(name)
            await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
            await send({"type": "http.response.body", "body": b""})

        return answer

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError

    gate = FrontendGate(app("own"), app("control"), 3)
    asyncio.run(gate({"type": "http", "method": method, "path": path}, receive, send))
    assert asked == [wanted]
    assert sent[0]["headers"] == [(b"a", b"b"), (HEADER, b"3")]
