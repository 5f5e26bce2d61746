"""Lets requests in a few at a time, so that output goes before new input.

To parse, render and submit a request takes about a millisecond of the event loop. Hundreds that arrive at once would
take it all in one turn, and every stream would wait for the last of them. Here their bodies are handed on in lots; in
between the loop has a turn, and delivers what the engine has said.
"""

from __future__ import annotations

import asyncio
from collections import deque

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOT = 8  # requests in one turn of the event loop


class Turnstile:
    """Plain ASGI, around whatever reads bodies. Requests go on in the order in which their bodies were complete."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._let_in = 0  # in this turn
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return

        async def receive_in_turn() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                await self._enter()
            return message

        await self.app(scope, receive_in_turn, send)

    async def _enter(self) -> None:
        loop = asyncio.get_running_loop()
        if self._let_in == 0:
            loop.call_soon(self._next_turn)
        if self._let_in < LOT:
            self._let_in += 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _next_turn(self) -> None:
        self._let_in = 0
        while self._waiting and self._let_in < LOT:
            turn = self._waiting.popleft()
            if not turn.done():  # else its client has gone
                turn.set_result(None)
                self._let_in += 1
        if self._let_in:
            asyncio.get_running_loop().call_soon(self._next_turn)
