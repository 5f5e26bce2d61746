"""Passes a request on to the control process, over HTTP on its Unix socket, and its answer back as it comes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from functools import partial

import httptools
from starlette.types import Message, Receive, Scope, Send

READ_BYTES = 1 << 16
MAX_HEADERS_BYTES = 1 << 20  # of the answer's start
Write = Callable[[bytes], Awaitable[None]]
_HOP_BY_HOP = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"te", b"upgrade", b"expect"))
_OWN = frozenset((b"date", b"server"))  # headers that a frontend sets by itself


class ControlProxy:
    """An ASGI application. One connection per request: such requests are few."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, self._path)
            # Reading has a handle of its own: a write that fails, because the answer came before all of the request
            # was read, would take the answer with it.
            reader, connection = await asyncio.open_unix_connection(sock=sock.dup(), limit=MAX_HEADERS_BYTES)
            try:
                await _exchange(scope, receive, send, reader, partial(loop.sock_sendall, sock))
            finally:
                connection.close()
                with contextlib.suppress(OSError):
                    await connection.wait_closed()


async def _exchange(scope: Scope, receive: Receive, send: Send, reader: asyncio.StreamReader, write: Write) -> None:
    sending = asyncio.create_task(_send_request(scope, receive, write))
    answering = asyncio.create_task(_pass_answer(reader, send, bodyless=scope["method"] == "HEAD"))
    try:
        # The request ends with the client's disconnect; the answer may come before all of the request was read.
        await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done() and not sending.cancelled() and sending.exception() is not None:
            await asyncio.wait({answering}, timeout=1.0)  # it does not read on: it may have said why
        if answering.done():
            answering.result()
    finally:
        for task in (sending, answering):
            task.cancel()
        await asyncio.gather(sending, answering, return_exceptions=True)


async def _send_request(scope: Scope, receive: Receive, write: Write) -> None:
    """Returns when the client has gone."""
    target: bytes = scope["raw_path"]
    if query := scope["query_string"]:
        target += b"?" + query
    headers = [(name, value) for name, value in scope["headers"] if name.lower() not in _HOP_BY_HOP]
    chunked = any(name.lower() == b"transfer-encoding" for name, _ in scope["headers"])
    headers.append((b"connection", b"close"))
    if chunked:
        headers.append((b"transfer-encoding", b"chunked"))
    lines = [b"%s %s HTTP/1.1" % (scope["method"].encode(), target), *(b"%s: %s" % pair for pair in headers)]
    await write(b"\r\n".join(lines) + b"\r\n\r\n")
    while (message := await receive())["type"] == "http.request":
        body = message.get("body", b"")
        if body:
            await write(b"%x\r\n%s\r\n" % (len(body), body) if chunked else body)
        if chunked and not message.get("more_body", False):
            await write(b"0\r\n\r\n")


class _Answer:
    """Callbacks of the parser: collect the ASGI messages of an answer."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.headers: list[tuple[bytes, bytes]] = []
        self.messages: list[Message] = []
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() not in _HOP_BY_HOP | _OWN:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        start = {"type": "http.response.start", "status": self.parser.get_status_code(), "headers": self.headers}
        self.messages.append(start)

    def on_body(self, body: bytes) -> None:
        self.messages.append({"type": "http.response.body", "body": body, "more_body": True})

    def on_message_complete(self) -> None:
        self.complete = True
        self.messages.append({"type": "http.response.body", "body": b"", "more_body": False})


async def _pass_answer(reader: asyncio.StreamReader, send: Send, *, bodyless: bool) -> None:
    answer = _Answer()
    while not answer.complete:
        data = await reader.read(READ_BYTES)
        if not data:
            raise ConnectionError("the control process broke off its answer")
        answer.parser.feed_data(data)
        if bodyless and answer.messages and not answer.complete:
            answer.on_message_complete()
        messages, answer.messages = answer.messages, []
        for message in messages:
            await send(message)
