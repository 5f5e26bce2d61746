"""CORS: which web pages may call the server from a browser."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

# Response headers that a page may read beside the body.
_EXPOSED_HEADERS = (
    "x-request-id", "request-id", "retry-after", "server-timing", "traceresponse", "x-penstock-warnings",
    "x-penstock-deployment", "x-penstock-route",
)  # fmt: skip


def cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Lets pages of these origins call. Preflight requests carry no API key, so this goes outside the auth middleware.
    No credentials: cookies are not read, the key is in a header."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "HEAD", "POST", "DELETE"),
        allow_headers=("*",),
        allow_private_network=True,  # an allowed page on the Internet may call a server on this machine
        expose_headers=_EXPOSED_HEADERS,
    )
