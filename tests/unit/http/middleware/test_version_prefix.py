from __future__ import annotations

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from penstock.http.middleware.version_prefix import VersionPrefixMiddleware

PATHS = ("/v1/chat/completions", "/v1/models", "/v1/models/{model_id:path}", "/v1/plan", "/plan", "/ui/{path:path}")


@pytest.mark.parametrize(
    ("asked", "served"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/chat/nonsense", "/v1/chat/nonsense"),
        ("/models", "/v1/models"),
        ("/models/hub/name", "/v1/models/hub/name"),
        ("/v1/models", "/v1/models"),
        ("/plan", "/plan"),
        ("/ui/chat", "/ui/chat"),
        ("/chats", "/chats"),
        ("/", "/"),
    ],
)
def test_paths(asked: str, served: str) -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)

    scope = {"type": "http", "path": asked, "raw_path": asked.encode(), "state": {}}
    asyncio.run(VersionPrefixMiddleware(app, PATHS)(scope, None, None))  # type: ignore[arg-type]

    assert (seen[0]["path"], seen[0]["raw_path"]) == (served, asked.encode())
    assert seen[0]["state"] is scope["state"]
