"""A frontend's end of the socket to its control process."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from penstock.frontends import messages
from penstock.frontends.messages import Answer, FromControl, ToControl
from penstock.observe import events
from penstock.system import typed
from penstock.system.framed_socket import FramedSocket

T = TypeVar("T")

Call = Callable[[int], ToControl]  # makes the message of a call, from its number


class ControlLink:
    """Messages leave in the order in which they were told, those of one turn of the event loop together. `tell` may be
    called from any thread. Ends the process when the control process has gone."""

    def __init__(self, sock: socket.socket, handle: Callable[[FromControl], None], on_gone: Callable[[], None]) -> None:
        """`handle` gets all messages but answers to calls. `on_gone` is called before the process ends."""
        self._framed = FramedSocket(sock)
        self._handle = handle
        self._on_gone = on_gone
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[FromControl] = typed.msgpack_decoder(FromControl)
        self._outbox: deque[ToControl] = deque()
        self._flushing = False  # is on its way
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._writing = False
        self._loop.add_reader(self._framed.fileno(), self._read)

    def tell(self, message: ToControl) -> None:
        self._outbox.append(message)
        if self._flushing:
            return
        self._flushing = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self.flush)
        else:
            self._loop.call_soon_threadsafe(self.flush)

    def record(self, event: events.Event) -> None:
        """Tell the journal."""
        self.tell(messages.to_wire(event))

    async def call(self, make: Call, kind: type[T]) -> T:
        """Wait for the answer, of this kind. Raises the error that it is answered with."""
        number = next(self._numbers)
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._calls[number] = answer
        self._outbox.append(make(number))
        self.flush()
        try:
            return typed.convert(await answer, kind)
        finally:
            self._calls.pop(number, None)

    def flush(self) -> None:
        """Send what has been told."""
        self._flushing = False
        waiting = []
        while self._outbox:  # threads may append meanwhile
            waiting.append(self._outbox.popleft())
        if waiting:
            self._framed.send(self._encoder.encode(waiting))
        if self._framed.unsent_bytes and not self._writing:
            self._writing = True
            self._loop.add_writer(self._framed.fileno(), self._write)

    def _write(self) -> None:
        self._framed.flush()
        if not self._framed.unsent_bytes:
            self._writing = False
            self._loop.remove_writer(self._framed.fileno())

    def _read(self) -> None:
        for data in self._framed.receive():
            message = self._decoder.decode(data)
            if not isinstance(message, Answer):
                self._handle(message)
            elif (waiting := self._calls.get(message.call)) is not None and not waiting.done():
                if message.failed is None:
                    waiting.set_result(message.value)
                else:
                    waiting.set_exception(message.failed.error())
        if self._framed.gone:
            self._on_gone()
            os._exit(1)  # nothing can be accounted for any more
