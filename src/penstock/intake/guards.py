"""What every HTTP request passes before it reaches a route: its id, the key, the size of its body.

Plain ASGI, in this order from the outside: RequestIds, Keys, BodyLimit.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import time
import uuid
from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.errors import RequestTooLarge, Unauthorized
from penstock.intake.failure import failure

logger = logging.getLogger("penstock.access")

OPEN_PATHS = frozenset({"/health"})
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class RequestIds:
    """Takes the client's x-request-id or makes one; it is in the answer's headers, in errors and in the log."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = _header(scope, b"x-request-id") or b""
        request_id = given.decode() if _REQUEST_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"
        scope.setdefault("state", {})["request_id"] = request_id
        started, status, complete = time.perf_counter(), 0, False

        async def send_named(message: Message) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
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
            logger.info("%s %s %s %.1f ms %s", scope["method"], path, status or "gone", spent_ms, request_id)


class Keys:
    """Lets nobody through without one of the keys, where there are any. Only their hashes are kept."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self.app = app
        self.hashes = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS and not self._allowed(scope):
            error = Unauthorized("give a valid API key: Authorization: Bearer <key>")
            await failure(error, scope)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        if not self.hashes:
            return True
        kind, _, key = (_header(scope, b"authorization") or b"").partition(b" ")
        given = hashlib.sha256(key.strip()).digest()
        # All of them are compared, each in constant time: how long it takes tells nothing.
        matches = [hmac.compare_digest(given, known) for known in self.hashes]
        return kind.lower() == b"bearer" and any(matches)


class BodyLimit:
    """Reads no more of a body than `limit` bytes, whatever its headers say."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        error = RequestTooLarge(f"the body is larger than {self.limit} bytes")
        length = _header(scope, b"content-length") or b"0"
        if length.isdigit() and int(length) > self.limit:
            await failure(error, scope)(scope, receive, send)
            return
        seen = 0

        async def receive_counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.limit:
                raise error
            return message

        await self.app(scope, receive_counted, send)


def _header(scope: Scope, name: bytes) -> bytes | None:
    return next((value for key, value in scope["headers"] if key == name), None)
