"""Auth middleware: API keys, from `Authorization: Bearer` or `x-api-key`."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.errors import Unauthorized
from penstock.gateway.keys.directory import KeyDirectory
from penstock.gateway.keys.identity import Identity
from penstock.http.error_response import error_response
from penstock.http.middleware.headers import get_header

KEYLESS_PATHS = frozenset({"/health", "/ready"})  # for load balancers, which have no key


class ApiKeyMiddleware:
    """Rejects requests without a valid key and sets `scope["state"]["identity"]`, and how long that took."""

    def __init__(self, app: ASGIApp, keys: KeyDirectory) -> None:
        self.app = app
        self.keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            start = time.perf_counter()
            try:
                scope["state"]["identity"] = self._identity(scope)
                scope["state"]["auth_s"] = time.perf_counter() - start
            except Unauthorized as error:
                if not _needs_no_key(scope["path"]):  # keyless routes have no identity: they show nothing of a tenant
                    await error_response(error, scope)(scope, receive, send)
                    return
        await self.app(scope, receive, send)

    def _identity(self, scope: Scope) -> Identity:
        """The identity of the request's key. If both headers are valid, x-api-key wins. Raises Unauthorized."""
        scheme, _, bearer = (get_header(scope, b"authorization") or b"").partition(b" ")
        error = Unauthorized("give a valid API key: Authorization: Bearer <key>, or x-api-key: <key>")
        for key in (get_header(scope, b"x-api-key") or b"", bearer if scheme.lower() == b"bearer" else b""):
            try:
                identity = self.keys.identify(key.strip())
            except Unauthorized as found:
                error = found
                continue
            if identity is not None:
                return identity
        raise error


def _needs_no_key(path: str) -> bool:
    return path in KEYLESS_PATHS or path in ("/", "/ui") or path.startswith("/ui/")
