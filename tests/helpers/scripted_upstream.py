"""An OpenAI-compatible server on loopback that does what a test tells it, byte by byte: it can misbehave in any way."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

Write = Callable[[bytes], Awaitable[None]]
Script = Callable[["Exchange"], Awaitable[None]]


class Exchange:
    """One request, and the way back."""

    def __init__(self, path: str, headers: dict[str, str], body: Any, writer: asyncio.StreamWriter) -> None:
        self.path = path
        self.headers = headers
        self.body = body
        self._writer = writer
        self.gone = asyncio.Event()  # the client has closed the connection

    async def respond(self, status: int, body: bytes, headers: str = "", kind: str = "application/json") -> None:
        await self.write(
            f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{headers}\r\n".encode()
            + body
        )

    async def start_events(self, kind: str = "text/event-stream") -> None:
        await self.write(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode())

    async def event(self, payload: Any) -> None:
        text = payload if isinstance(payload, str) else json.dumps(payload)
        await self.raw(f"data: {text}\n\n".encode())

    async def raw(self, data: bytes) -> None:
        await self.write(b"%x\r\n" % len(data) + data + b"\r\n")

    async def end_events(self) -> None:
        await self.event("[DONE]")
        await self.write(b"0\r\n\r\n")

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def hang_up(self) -> None:
        self._writer.close()


def delta(model: str = "there", *, index: int = 0, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": fields, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": [choice]}


def usage(prompt: int, completion: int, **fields: Any) -> dict[str, Any]:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion, **fields}
    return {"id": "x", "object": "chat.completion.chunk", "model": "there", "choices": [], "usage": counts}


async def answer(exchange: Exchange, *texts: str, counts: dict[str, Any] | None = None) -> None:
    """A well-behaved answer."""
    await exchange.start_events()
    await exchange.event(delta(role="assistant", content=""))
    for text in texts:
        await exchange.event(delta(content=text))
    await exchange.event(delta(finish="stop"))
    if counts is not None:
        await exchange.event(counts)
    await exchange.end_events()


class ScriptedUpstream:
    """Runs `script` for each request; `requests` are those that came."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Exchange] = []
        self.url = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.strip().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                exchange = Exchange(first.split()[1], headers, json.loads(body) if body else None, writer)
                self.requests.append(exchange)
                running = asyncio.ensure_future(self.script(exchange))
                watching = asyncio.ensure_future(_closed(reader))
                await asyncio.wait({running, watching}, return_when=asyncio.FIRST_COMPLETED)
                if not running.done():  # the client hung up: nothing else comes before an answer
                    exchange.gone.set()
                    running.cancel()
                    return
                watching.cancel()
                await asyncio.wait({watching})
                running.result()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    @asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[ScriptedUpstream]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        try:
            yield self
        finally:
            server.close()


async def _closed(reader: asyncio.StreamReader) -> None:
    """Until the other side closes: it sends nothing before it has its answer."""
    await reader.read(1)
