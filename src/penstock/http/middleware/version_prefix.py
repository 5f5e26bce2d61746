"""The `/v1` prefix, for clients that leave it out of their base URL or join it wrongly."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

PREFIX = "/v1"


class VersionPrefixMiddleware:
    """Serves `/chat/completions` as `/v1/chat/completions`, and so on. The app sees one route; the access log has the
    client's path."""

    def __init__(self, app: ASGIApp, paths: Iterable[str]) -> None:
        """`paths` are those of all routes: a path that has an unversioned route is left alone."""
        paths = list(paths)
        versioned = {_first_segment(path.removeprefix(PREFIX)) for path in paths if path.startswith(f"{PREFIX}/")}
        self.app = app
        self.segments = versioned - {_first_segment(path) for path in paths}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _first_segment(scope["path"]) in self.segments:
            scope = {**scope, "path": PREFIX + scope["path"]}
        await self.app(scope, receive, send)


def _first_segment(path: str) -> str:
    """`chat` of `/chat/completions`."""
    return path[1:].partition("/")[0]
