"""Admission throttle: admits requests a few at a time, so that output goes before new input.

Parsing, rendering and submitting a request takes about a millisecond of the event loop. Hundreds that arrive together
would take it all in one turn, and every stream would wait for the last of them. Here their bodies are passed on in
batches; between two batches the loop has a turn, and delivers what the engines have sent.
"""

from __future__ import annotations

import asyncio
from collections import deque

from starlette.types import ASGIApp, Message, Receive, Scope, Send

BATCH = 8  # requests admitted in one turn of the event loop


class AdmissionThrottle:
    """Wraps the app that reads the bodies. Requests are admitted in the order in which their bodies are complete."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._admitted = 0  # in this turn
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return

        async def receive_when_admitted() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                await self._admit()
            return message

        await self.app(scope, receive_when_admitted, send)

    async def _admit(self) -> None:
        loop = asyncio.get_running_loop()
        if self._admitted == 0:
            loop.call_soon(self._next_turn)
        if self._admitted < BATCH:
            self._admitted += 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _next_turn(self) -> None:
        self._admitted = 0
        while self._waiting and self._admitted < BATCH:
            turn = self._waiting.popleft()
            if not turn.done():  # otherwise the client has disconnected
                turn.set_result(None)
                self._admitted += 1
        if self._admitted:
            asyncio.get_running_loop().call_soon(self._next_turn)
