"""The short way out of a stream whose client keeps up: from a token to bytes on the connection, past ASGI."""

from __future__ import annotations

from array import array

from penstock.deployment.ticket import Ticket
from penstock.http.protocol import DirectBody
from penstock.http.sse import TextEvent
from penstock.observe import events
from penstock.observe.events import Emit
from penstock.stream.active_request import ShortWay

WRITES_PER_EVENT = 64  # reporting each write by itself would cost as much as the write's own bookkeeping


class DirectWriter:
    """Writes to the connection of one request, and keeps account of it."""

    __slots__ = ("_emit", "_request", "_writes", "body")

    def __init__(self, body: DirectBody, request: str, emit: Emit | None) -> None:
        self.body = body
        self._request = request
        self._emit = emit
        self._writes: array[float] = array("d")  # when, bytes, …

    def write(self, data: bytes, now: float) -> None:
        self.body.write(data)
        self.count(len(data), now)

    def count(self, num_bytes: int, now: float) -> None:
        if self._emit is not None:
            writes = self._writes
            writes.append(now)  # writing does not wait
            writes.append(num_bytes)
            if len(writes) == 2 * WRITES_PER_EVENT:
                self.report()

    def report(self) -> None:
        """Emit the writes since the last report."""
        if self._writes and self._emit is not None:
            writes, self._writes = self._writes, array("d")
            self._emit(events.FlushedTokens(self._request, writes[-2], writes))


class TextLane:
    """A deployment.TokenLane: tokens of one choice become text events of its stream. It refuses a token while the
    client lags behind, while the stream's task is at work, and while chunks wait that came before it.

    At hundreds of streams its time goes into cache misses: it touches few objects.
    """

    __slots__ = ("_body", "_encode", "_first", "_head", "_later", "_tail", "_ticket", "_way", "_writer")

    def __init__(self, ticket: Ticket, way: ShortWay, event: TextEvent, writer: DirectWriter) -> None:
        self._ticket = ticket
        self._way = way
        self._head, self._tail = event.framed_head, event.framed_tail
        self._encode = event.encode_text
        self._writer = writer
        self._body = writer.body
        self._first: bytes | None = None  # encoded text that waits for `flush`
        self._later: list[bytes] = []  # and more of it, if several frames came at once

    def push(self, token: int) -> bool:
        if not (self._ticket.lanes_open and self._body.ready):
            return False
        text = self._way.push_token(token)
        if text:
            if self._first is None:
                self._first = self._encode(text)
            else:
                self._later.append(self._encode(text))
        return text is not None

    def flush(self, now: float) -> None:
        if (first := self._first) is None:
            return
        self._first = None
        if self._later:
            separator = self._tail + self._head
            first = separator.join((first, *self._later))
            self._later.clear()
        self._writer.count(self._body.write_parts(self._head, first, self._tail), now)
