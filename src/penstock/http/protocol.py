"""HTTP/1.1 on a connection: uvicorn's protocol with bounds on the size of headers and on the time a client may take to
send its request. Uvicorn has neither, and clients are not authenticated at that point.

Trailers of a chunked body count as headers do, and are dropped. No connection is upgraded, to WebSocket or HTTP/2: the
request is answered as if it had not asked for that, as RFC 9110 (7.8) has it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, cast

from penstock.http.uvicorn_adapter import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

MAX_HEAD_BYTES = 64 * 1024  # of the request line and headers, give or take what one read brings
SILENCE_S = 60.0  # for the whole head, and between two pieces of a body
GRACE_S = 20.0  # for a body of any size; beyond that it has to come
LEAST_BYTES_PER_S = 1024.0  # on the average
BODY_EXTENSION = "penstock.body"  # of the ASGI scope: a DirectBody


_CHUNK_HEADS = [b"%x\r\n" % size for size in range(1024)]  # of chunked transfer encoding


class DirectBody:
    """Writes pieces of streamed answers' bodies straight to a connection. The head and the end of an answer go through
    `send`, with all that ASGI's layers do to them; they do nothing to the pieces between, which are most."""

    __slots__ = ("_transport", "ready")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.ready = True  # the client is there and keeps up; where it does not, `send` waits for it
        self._transport = transport

    def write(self, data: bytes) -> None:
        """One piece, of a body of unknown length whose head has been sent. Goes out when the loop's turn ends."""
        self.write_parts(b"", data, b"")

    def write_parts(self, head: bytes, middle: bytes, tail: bytes) -> int:
        """One piece that has these parts; returns its length."""
        size = len(head) + len(middle) + len(tail)
        if not self._transport.is_closing():
            line = _CHUNK_HEADS[size] if size < len(_CHUNK_HEADS) else b"%x\r\n" % size
            self._transport.write(b"".join((line, head, middle, tail, b"\r\n")))
        return size


class Protocol(HttpToolsProtocol):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._within_message = self._within_head = False
        self._brought_body = False  # what was received last
        self._head_bytes = 0
        self._body_due: float | None = None  # when what has come of a body has taken too long
        self._deadline: asyncio.TimerHandle | None = None
        self._unanswered: list[RequestResponseCycle] = []  # requests, the one that is being answered first
        self._direct: DirectBody | None = None
        self._unread: list[bytes | memoryview] = []  # the last one is read next
        self._reading: bytes | memoryview = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._direct = DirectBody(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(nothing=True)
        if self._direct is not None:
            self._direct.ready = False
        for cycle in self._unanswered:  # uvicorn tells only the last of requests that came behind each other
            if isinstance(exc, TimeoutError):  # the kernel's patience: see `port`
                cast(dict[str, Any], cycle.scope)["state"]["unread"] = True
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._direct is not None:
            self._direct.ready = False

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._direct is not None:
            self._direct.ready = True

    def data_received(self, data: bytes) -> None:
        self._brought_body = False
        self._unread = [data]
        while self._unread and not self.transport.is_closing():
            self._reading = self._unread.pop()
            super().data_received(self._reading)  # type: ignore[arg-type]  # a memoryview is read, too
        self._reading = b""
        counts = self._within_message and not self._brought_body
        self._head_bytes = self._head_bytes + len(data) if counts else 0
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.logger.warning("a request with headers of more than %d bytes was refused", MAX_HEAD_BYTES)
            self._refuse(431)

    def _should_upgrade(self) -> bool:
        """Of a request with such a header, of which the parser has skipped the body: uvicorn starts no answer, and
        calls the next method."""
        return True

    def handle_websocket_upgrade(self) -> None:
        """Has the request read again without the header. Java's HTTP client sends it (h2c), also with a body."""
        upgrade = sys.exc_info()[1]
        method = self.parser.get_method()
        if upgrade is None or method == b"CONNECT":
            self.send_400_response("This server is no proxy.")
            return
        version = cast(dict[str, Any], self.scope)["http_version"].encode()
        kept = [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (method, self.url, version, b"".join(kept))
        self._unread += [memoryview(self._reading)[upgrade.args[0] :], head]

    def on_message_begin(self) -> None:
        self._within_message = self._within_head = True
        self._expect()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._within_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._within_head = False
        self._body_due = self.loop.time() + GRACE_S
        self._expect()
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not None and self.cycle is not before:  # its task has not begun yet
            cast(dict[str, Any], self.scope).setdefault("extensions", {})[BODY_EXTENSION] = self._direct
            self._unanswered = [one for one in self._unanswered if not one.response_complete] + [self.cycle]

    def on_body(self, body: bytes) -> None:
        self._brought_body = True
        if self._body_due is not None:
            self._body_due += len(body) / LEAST_BYTES_PER_S
        self._expect()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._within_message = False
        self._body_due = None
        self._expect(nothing=True)
        super().on_message_complete()

    def _expect(self, *, nothing: bool = False) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        delay_s = SILENCE_S
        if self._body_due is not None and (left_s := self._body_due - self.loop.time()) > 0:
            delay_s = min(delay_s, left_s)
        self._deadline = None if nothing else self.loop.call_later(delay_s, self._late)

    def _late(self) -> None:
        cycle = self.cycle
        # A request behind this one's back, or an answer that is under way: they are not to be cut off.
        answering = cycle is not None and not cycle.response_complete and (self._within_head or cycle.response_started)
        if self.pipeline or answering:
            self._expect()
        elif self._within_head or (cycle is not None and not cycle.response_started):
            self._refuse(408)
        else:  # answered already, or nothing was asked: browsers connect ahead, and would take a 408 for an answer
            self.transport.close()

    def _refuse(self, status: int) -> None:
        if self._within_head or self.cycle is None or not self.cycle.response_started:
            self.transport.write(STATUS_LINE[status] + b"content-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()
