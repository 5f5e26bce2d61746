"""Clients that know which answers they have received in full, for a server that is killed at any moment."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import httpx

CLIENTS = 8
CHAT = "/v1/chat/completions"


class Clients:
    """Send requests, as many at once as the key may, until the server is gone. `delivered` has the usage of
    each answer whose end was received, by the id of the request."""

    def __init__(self, url: str, key: str, seed: int) -> None:
        self.delivered: dict[str, dict[str, Any]] = {}
        self.refused: list[str] = []  # error bodies
        self.events = 0  # pieces of answers that were received
        self._url, self._headers = url, {"authorization": f"Bearer {key}"}
        self._random = random.Random(seed)

    async def run(self, kill: Callable[[], None], at_event: int) -> None:
        """Calls `kill` with the event of this number. Clients that have disconnected count against the limit for a
        moment, so some requests are refused."""
        self._kill, self._at_event = kill, at_event
        limits = httpx.Limits(max_connections=CLIENTS)
        async with httpx.AsyncClient(base_url=self._url, headers=self._headers, timeout=60, limits=limits) as client:
            # Nothing is left of the requests of the server before: as many run at once as the key may.
            await asyncio.gather(*(self._whole(client) for _ in range(CLIENTS)))
            assert self.refused == []
            await asyncio.gather(*(self._client(client) for _ in range(CLIENTS)))

    async def _client(self, client: httpx.AsyncClient) -> None:
        ways = (self._stream, self._stream, self._whole, self._leave)
        try:
            while True:
                await self._random.choice(ways)(client)
        except httpx.HTTPError:
            return  # the server is gone

    def _body(self, **fields: Any) -> dict[str, Any]:
        words = " ".join(self._random.choices(("stone", "river", "bridge"), k=self._random.randint(1, 40)))
        return {"model": "m", "messages": [{"role": "user", "content": words}], "ignore_eos": True, **fields}

    async def _stream(self, client: httpx.AsyncClient) -> None:
        body = self._body(max_tokens=self._random.randint(1, 24), stream=True, stream_options={"include_usage": True})
        name, usage = "", None
        async with client.stream("POST", CHAT, json=body) as response:
            async for line in response.aiter_lines():
                self._count()
                if line == "data: [DONE]":
                    self._receive(name, usage)
                elif line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    name, usage = event.get("id", name), event.get("usage") or usage
                elif line:
                    self.refused.append(line)

    async def _whole(self, client: httpx.AsyncClient) -> None:
        body = self._body(max_tokens=self._random.randint(1, 8), n=self._random.randint(1, 2))
        response = await client.post(CHAT, json=body)
        self._count()
        answer = response.json()
        self._receive(answer.get("id", ""), answer.get("usage"))
        if response.status_code != 200:
            self.refused.append(response.text)

    async def _leave(self, client: httpx.AsyncClient) -> None:
        """Disconnects after a few tokens."""
        async with client.stream("POST", CHAT, json=self._body(max_tokens=500, stream=True)) as response:
            left = self._random.randint(1, 6)
            async for _ in response.aiter_lines():
                self._count()
                left -= 1
                if not left:
                    return

    def _receive(self, name: str, usage: dict[str, Any] | None) -> None:
        if usage is not None:
            assert name not in self.delivered
            self.delivered[name.removeprefix("chatcmpl-")] = usage

    def _count(self) -> None:
        self.events += 1
        if self.events == self._at_event:
            self._kill()
