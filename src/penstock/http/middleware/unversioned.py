"""The API without its version: some clients leave `/v1` out of their base URL, or join it wrongly."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

VERSION = "/v1"


class Unversioned:
    """Serves `/chat/completions` as `/v1/chat/completions`, and so on. Whatever is inside sees one route; the access
    log has what the client asked for."""

    def __init__(self, app: ASGIApp, paths: Iterable[str]) -> None:
        """`paths` are those of all routes: what one has without a version stays its own."""
        paths = list(paths)
        versioned = {_first(path.removeprefix(VERSION)) for path in paths if path.startswith(f"{VERSION}/")}
        self.app = app
        self.names = versioned - {_first(path) for path in paths}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _first(scope["path"]) in self.names:
            scope = {**scope, "path": VERSION + scope["path"]}
        await self.app(scope, receive, send)


def _first(path: str) -> str:
    """`chat` of `/chat/completions`."""
    return path[1:].partition("/")[0]
