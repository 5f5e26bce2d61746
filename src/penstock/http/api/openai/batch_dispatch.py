"""Answers a line of a batch as an interactive request is answered: by the routes, below the middleware. So a line is
checked, routed, recorded and answered as any other request, with the same errors."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from starlette import types
from starlette.types import ASGIApp, Message

from penstock.batch.records import Batch, LineAnswer, LineRequest
from penstock.errors import Unauthorized
from penstock.gateway.keys.identity import Identity
from penstock.http.background import BATCH, LINE
from penstock.http.error_body import render_error

logger = logging.getLogger(__name__)


class LineDispatcher:
    def __init__(self, app: ASGIApp, identity: Callable[[Batch], Identity]) -> None:
        """`app` has the routes and no middleware. `identity` raises Unauthorized once the batch's key is not valid."""
        self._app = app
        self._identity = identity

    async def __call__(self, request: LineRequest) -> LineAnswer:
        """Cancelling it cancels the request."""
        status, says_when, parts = 0, False, list[bytes]()
        unread: list[Message] = [{"type": "http.request", "body": request.body, "more_body": False}]

        async def receive() -> Message:
            if unread:
                return unread.pop()
            await asyncio.Event().wait()  # the client of a line does not disconnect
            raise AssertionError

        async def send(message: Message) -> None:
            nonlocal status, says_when
            if message["type"] == "http.response.start":
                status = message["status"]
                says_when = any(name == b"retry-after" for name, _ in message.get("headers", ()))
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))

        token = BATCH.set(request.batch.id)
        line = LINE.set(f"{request.batch.id}/{request.line}")
        try:
            await self._app(_scope(request, self._identity(request.batch)), receive, send)
        except Unauthorized as error:
            rendered = render_error(error, request.request_id)
            return LineAnswer(rendered.status, rendered.body)
        except Exception as error:
            if not status:  # otherwise answered and logged: Starlette raises it all the same
                logger.error("line of batch %s failed", request.batch.id, exc_info=error)
                rendered = render_error(error, request.request_id)
                return LineAnswer(rendered.status, rendered.body)
        finally:
            BATCH.reset(token)
            LINE.reset(line)
        return LineAnswer(status, b"".join(parts), says_when)


def _scope(request: LineRequest, identity: Identity) -> types.Scope:
    path = request.batch.endpoint
    state = {
        "identity": identity,
        "request_id": request.request_id,
        "accepted": time.monotonic(),
        "trace": None,
    }
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(request.body)).encode())],
        "client": None,
        "server": None,
        "state": state,
    }
