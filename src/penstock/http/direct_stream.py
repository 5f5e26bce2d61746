"""The short way out of a stream whose client keeps up: from a token to bytes on the connection, past ASGI."""

from __future__ import annotations

import time
from array import array

from penstock.deployment.ticket import Ticket
from penstock.http.protocol import DirectBody
from penstock.http.sse import TextEvent
from penstock.observe import events
from penstock.observe.events import Emit
from penstock.stream.choice import ChoiceStream

WRITES_PER_EVENT = 64  # reporting each write by itself would cost as much as the write's own bookkeeping


class DirectWriter:
    """Writes to the connection of one request, and keeps account of it."""

    def __init__(self, body: DirectBody, request: str, emit: Emit | None) -> None:
        self.body = body
        self.pending: list[bytes] = []  # events to write at `flush`
        self._request = request
        self._emit = emit
        self._times: array[float] = array("d")
        self._sizes: array[int] = array("I")

    def flush(self) -> None:
        if pending := self.pending:
            self.write(pending[0] if len(pending) == 1 else b"".join(pending))
            pending.clear()

    def write(self, data: bytes) -> None:
        self.body.write(data)
        if self._emit is not None:
            self._times.append(time.monotonic())  # writing does not wait
            self._sizes.append(len(data))
            if len(self._sizes) == WRITES_PER_EVENT:
                self.report()

    def report(self) -> None:
        """Tell of the writes since the last report."""
        if self._sizes and self._emit is not None:
            times, sizes = self._times, self._sizes
            self._times, self._sizes = array("d"), array("I")
            self._emit(events.FlushedTokens(self._request, times[-1], times, sizes))


class TextLane:
    """A deployment.TokenLane: tokens of one choice become text events of its stream. It refuses a token while the
    client lags behind, while the stream's task is at work, and while chunks wait that came before it."""

    def __init__(self, ticket: Ticket, choice: ChoiceStream, event: TextEvent, writer: DirectWriter) -> None:
        self._ticket = ticket
        self._choice = choice
        self._head, self._tail = event.framed_head, event.framed_tail
        self._encode = event.encode_text
        self._body = writer.body
        self._pending = writer.pending
        self.flush = writer.flush

    def push(self, token: int) -> bool:
        ticket = self._ticket
        if ticket.sink is None or ticket.chunks or not self._body.ready:
            return False
        text = self._choice.push_token(token)
        if text is None:
            return False
        if text:
            self._pending.append(self._head + self._encode(text) + self._tail)
        return True
