"""Limits on request bodies: bytes of one request, and bytes of all bodies that are not parsed yet. Their speed is
limited in `http.protocol`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.errors import QueueFull, RequestTooLarge
from penstock.http.error_response import error_response
from penstock.http.middleware.headers import get_header
from penstock.system.resources import return_free_memory

TOTAL_BODIES = 4  # of the maximum size, that may be held at once,
MIN_TOTAL_BYTES = 64 << 20  # or this many bytes, where that is more
LARGE_BODY = 1 << 20  # bytes: the memory of larger ones is returned to the system after the response


class IncomingBody:
    """The body of one request while it arrives. Counted until it is released."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.size = 0
        self.complete = False
        self.rejected = False  # to make room for others
        self._receiving: asyncio.Timeout | None = None

    async def receive(self, receive: Receive) -> Message:
        """Raises QueueFull once the body is rejected."""
        try:
            async with asyncio.timeout(None) as self._receiving:
                return await receive()
        except TimeoutError:
            raise _bodies_full() from None
        finally:
            self._receiving = None

    def reject(self) -> None:
        self.rejected = True
        if self._receiving is not None:
            self._receiving.reschedule(0.0)


class BodyLimitMiddleware:
    """Reads at most `limit` bytes of a body; content-length is not trusted. When all bodies together exceed the total,
    the slowest is rejected: clients that trickle cannot keep out the others."""

    def __init__(
        self,
        app: ASGIApp,
        limit: int,
        *,
        streamed: Mapping[str, int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`streamed`: limits of paths whose bodies go to disk as they come, and are not held."""
        self.app = app
        self.limit = limit
        self.streamed = streamed or {}
        self.total = max(TOTAL_BODIES * limit, MIN_TOTAL_BYTES)
        self.held = 0  # bytes
        self._clock = clock
        self._bodies: set[IncomingBody] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        streamed = scope["path"] in self.streamed
        limit = self.streamed.get(scope["path"], self.limit)
        error = RequestTooLarge(f"the body is larger than {limit} bytes")
        length = get_header(scope, b"content-length") or b"0"
        if length.isdigit() and int(length) > limit:
            await error_response(error, scope)(scope, receive, send)
            return
        body = IncomingBody(self._clock())
        scope["state"]["release_body"] = lambda: self._release(body)  # called once the body is parsed

        async def receive_counted() -> Message:
            if body.complete:
                return await receive()
            message = await body.receive(receive)
            body.complete = not message.get("more_body", False)
            count = len(message.get("body", b""))
            if streamed:
                body.size += count
            else:
                self._hold(body, count)
            if body.size > limit:
                raise error
            return message

        try:
            await self.app(scope, receive_counted, send)
        finally:
            self._release(body)
            if body.size > LARGE_BODY and not streamed:
                asyncio.get_running_loop().run_in_executor(None, return_free_memory)

    def _hold(self, body: IncomingBody, count: int) -> None:
        if body.rejected:
            raise _bodies_full()
        if count:
            self._bodies.add(body)
            body.size += count
            self.held += count
        while self.held > self.total:
            candidates = (one for one in self._bodies if not one.complete or one is body)
            slowest = min(candidates, key=self._bytes_per_s, default=body)
            self._release(slowest)
            slowest.reject()
            if slowest is body:
                raise _bodies_full()

    def _release(self, body: IncomingBody) -> None:
        if body in self._bodies:
            self._bodies.remove(body)
            self.held -= body.size

    def _bytes_per_s(self, body: IncomingBody) -> float:
        return body.size / (self._clock() - body.start + 1.0)


def _bodies_full() -> QueueFull:
    return QueueFull("the server is receiving as much as it can hold; send the request again")
