"""How many bytes of bodies are held: of one request, and of all whose bodies are not parsed yet. How slowly a body may
come is up to `wire`."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.errors import QueueFull, RequestTooLarge
from penstock.http.error_response import failure
from penstock.system.resources import return_free_memory

TOTAL = 4  # times the longest body may be held,
LEAST_TOTAL = 64 << 20  # or so many bytes, where that is short
LARGE_BODY = 1 << 20  # bytes: the memory that a larger one took is given back once it is answered


class Body:
    """Of one request, on its way in. Counts until it is released."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.size = 0
        self.complete = False
        self.ended = False  # to make room for others
        self._waiting: asyncio.Timeout | None = None

    async def next(self, receive: Receive) -> Message:
        """Raises QueueFull once it was ended."""
        try:
            async with asyncio.timeout(None) as self._waiting:
                return await receive()
        except TimeoutError:
            raise _full() from None
        finally:
            self._waiting = None

    def end(self) -> None:
        self.ended = True
        if self._waiting is not None:
            self._waiting.reschedule(0.0)


class BodyLimit:
    """Reads no more of a body than `limit` bytes, whatever its headers say. Where all bodies together take too much,
    the one that comes slowest is refused: clients that trickle cannot keep out those that do not."""

    def __init__(self, app: ASGIApp, limit: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.app = app
        self.limit = limit
        self.total = max(TOTAL * limit, LEAST_TOTAL)
        self.held = 0  # bytes
        self._clock = clock
        self._open: set[Body] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        error = RequestTooLarge(f"the body is larger than {self.limit} bytes")
        length = next((value for key, value in scope["headers"] if key == b"content-length"), b"0")
        if length.isdigit() and int(length) > self.limit:
            await failure(error, scope)(scope, receive, send)
            return
        body = Body(self._clock())
        scope["state"]["release_body"] = lambda: self._release(body)  # called once the body is parsed

        async def receive_counted() -> Message:
            if body.complete:
                return await receive()
            message = await body.next(receive)
            body.complete = not message.get("more_body", False)
            self._hold(body, len(message.get("body", b"")))
            if body.size > self.limit:
                raise error
            return message

        try:
            await self.app(scope, receive_counted, send)
        finally:
            self._release(body)
            if body.size > LARGE_BODY:
                asyncio.get_running_loop().call_soon(_give_back_memory)

    def _hold(self, body: Body, count: int) -> None:
        if body.ended:
            raise _full()
        if count:
            self._open.add(body)
            body.size += count
            self.held += count
        while self.held > self.total:
            slowest = min((one for one in self._open if not one.complete or one is body), key=self._rate, default=body)
            self._release(slowest)
            slowest.end()
            if slowest is body:
                raise _full()

    def _release(self, body: Body) -> None:
        if body in self._open:
            self._open.remove(body)
            self.held -= body.size

    def _rate(self, body: Body) -> float:
        return body.size / (self._clock() - body.began + 1.0)


def _give_back_memory() -> None:
    """Errors lead to frames that lead back to them, and to the body: such a ring waits for the collector, which counts
    objects and not bytes. Only the young are looked through: that takes a millisecond or two."""
    gc.collect(1)
    asyncio.get_running_loop().run_in_executor(None, return_free_memory)


def _full() -> QueueFull:
    return QueueFull("the server is receiving as much as it can hold; send the request again")
