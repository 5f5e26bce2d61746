"""Auth middleware: API keys, from `Authorization: Bearer` or `x-api-key`."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.errors import Unauthorized
from penstock.http.error_response import error_response
from penstock.http.middleware.headers import get_header
from penstock.http.middleware.tenants import DEFAULT_TENANT, tenant_of_key

KEYLESS_PATHS = frozenset({"/health", "/ready"})  # for load balancers, which have no key


class ApiKeyMiddleware:
    """Rejects requests without a valid key, if the server has keys, and sets `scope["state"]["tenant"]`. Only hashes of
    the keys are held."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self.app = app
        self.tenants = {hashlib.sha256(key.encode()).digest(): tenant_of_key(key.encode()) for key in keys}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            tenant = self._tenant(scope)
            if tenant is not None:
                scope["state"]["tenant"] = tenant
            elif not _needs_no_key(scope["path"]):  # keyless routes have no tenant: they show nothing of one
                error = Unauthorized("give a valid API key: Authorization: Bearer <key>, or x-api-key: <key>")
                await error_response(error, scope)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _tenant(self, scope: Scope) -> str | None:
        """The tenant of the request's key; None without a valid key. If both headers are valid, x-api-key wins."""
        if not self.tenants:
            return DEFAULT_TENANT
        scheme, _, bearer = (get_header(scope, b"authorization") or b"").partition(b" ")
        keys = (get_header(scope, b"x-api-key") or b"", bearer if scheme.lower() == b"bearer" else b"")
        digests = [hashlib.sha256(key).digest() for text in keys if (key := text.strip())]
        # Every digest is compared with every key, each in constant time: the duration reveals nothing.
        matches = [
            [tenant for known, tenant in self.tenants.items() if hmac.compare_digest(digest, known)]
            for digest in digests
        ]
        return next((tenants[0] for tenants in matches if tenants), None)


def _needs_no_key(path: str) -> bool:
    return path in KEYLESS_PATHS or path in ("/", "/ui") or path.startswith("/ui/")
