"""What every HTTP request passes before it reaches a route: its id, whose page it comes from, whether it wants headers
only, the key.

Plain ASGI, in this order from the outside: RequestIds, Hosts (in `hosts`), shared, Heads, Keys, BodyLimit (in
`body_limit`).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import time
import uuid
from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.errors import Unauthorized
from penstock.http.error_response import failure
from penstock.http.middleware import trace_context
from penstock.http.middleware.tenants import ONLY, tenant_of_key

logger = logging.getLogger("penstock.access")

OPEN_PATHS = frozenset({"/health", "/ready"})  # for balancers, which have no key
_ID_HEADERS = (b"x-request-id", b"request-id")  # as OpenAI's clients look for it, and as Anthropic's do
# What pages of other origins may read beside the body; all else is kept from them.
_SHARED_HEADERS = (
    "x-request-id", "request-id", "retry-after", "server-timing", "traceresponse", "x-penstock-warnings",
)  # fmt: skip
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class RequestIds:
    """Takes the client's x-request-id or makes one; it is in the answer's headers, in errors and in the log."""

    def __init__(self, app: ASGIApp, *, traced: bool = False) -> None:
        """`traced`: a request that comes without a trace begins one."""
        self.app = app
        self.traced = traced

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = _header(scope, b"x-request-id") or b""
        request_id = given.decode() if _REQUEST_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"
        trace = trace_context.incoming(scope) or (trace_context.fresh() if self.traced else None)
        scope.setdefault("state", {}).update(request_id=request_id, accepted=time.monotonic(), trace=trace)
        named = [(name, request_id.encode()) for name in _ID_HEADERS]
        if trace is not None:
            named.append((b"traceresponse", trace_context.outgoing(trace)))
        started, status, complete = time.perf_counter(), 0, False

        async def send_named(message: Message) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *named]
            complete = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            await self.app(scope, receive, send_named)
        except Exception:
            if not complete:  # else it has been logged and answered, and Starlette raises it nevertheless
                raise
        finally:
            spent_ms = (time.perf_counter() - started) * 1000
            path = scope["raw_path"].decode("ascii", "replace")  # quoted: nobody can write lines of their own here
            logger.info(
                "%s %s %s %.1f ms %s", scope["method"], path, status or "gone", spent_ms, request_id,
                extra={
                    "request_id": request_id, "method": scope["method"], "path": path, "status": status or None,
                    "ms": round(spent_ms, 1), "trace_id": None if trace is None else trace.id,
                },
            )  # fmt: skip


def shared(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Lets pages of these origins call from a browser (CORS). It asks first, and without the key: so this stands before
    `Keys`. Cookies are not taken: a key is what counts."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "HEAD", "POST", "DELETE"),
        allow_headers=("*",),
        allow_private_network=True,  # a page on the Internet that is allowed to may call a server on this machine
        expose_headers=_SHARED_HEADERS,
    )


class Heads:
    """Answers HEAD as GET would be, without the body: so load balancers and monitors ask whether somebody is there."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        told = asyncio.Event()

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})
                told.set()

        answering = asyncio.ensure_future(self.app({**scope, "method": "GET"}, receive, send_head))
        telling = asyncio.ensure_future(told.wait())
        try:
            await asyncio.wait({answering, telling}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:  # the rest would be read by nobody, and a live feed has no end of its own
            answering.cancel()
            telling.cancel()


class Keys:
    """Lets nobody through without one of the keys, where there are any, and notes whose it is: see `tenants`. Only
    hashes of the keys are kept."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self.app = app
        self.tenants = {hashlib.sha256(key.encode()).digest(): tenant_of_key(key.encode()) for key in keys}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            tenant = self._tenant(scope)
            if tenant is not None:
                scope["state"]["tenant"] = tenant
            elif not _open(scope["path"]):  # there are routes that know no tenant: nothing there is anybody's
                error = Unauthorized("give a valid API key: Authorization: Bearer <key>, or x-api-key: <key>")
                await failure(error, scope)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _tenant(self, scope: Scope) -> str | None:
        """Whose key it carries; None: nobody's. Of two valid keys the x-api-key counts."""
        if not self.tenants:
            return ONLY
        kind, _, bearer = (_header(scope, b"authorization") or b"").partition(b" ")
        keys = (_header(scope, b"x-api-key") or b"", bearer if kind.lower() == b"bearer" else b"")
        given = [hashlib.sha256(key).digest() for text in keys if (key := text.strip())]
        # All of them are compared, each in constant time: how long it takes tells nothing.
        found = [[t for known, t in self.tenants.items() if hmac.compare_digest(one, known)] for one in given]
        return next((tenants[0] for tenants in found if tenants), None)


def _open(path: str) -> bool:
    return path in OPEN_PATHS or path in ("/", "/ui") or path.startswith("/ui/")


def _header(scope: Scope, name: bytes) -> bytes | None:
    return next((value for key, value in scope["headers"] if key == name), None)
