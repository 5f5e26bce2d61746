"""The socket between the frontend and an engine process: msgpack of the structs in `flow`, nothing else.

A pair of sockets on a path in a private folder, so that only this user's processes can reach it. Each end also holds a
lifeline: a pipe whose other end lives in the other process. It becomes readable when that process is gone, however it
went.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from penstock.flow.messages import FromEngine, ToEngine

T = TypeVar("T")


class PeerGone(Exception):
    """The process at the other end has died."""


class Link(Generic[T]):
    def __init__(self, socket: zmq.Socket[bytes], incoming: Any, lifeline: int) -> None:
        self.socket = socket
        self.lifeline = lifeline
        self.encoder = msgspec.msgpack.Encoder()
        self.decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(incoming)
        self.pollers = {what: self._poller(what) for what in (zmq.POLLIN, zmq.POLLOUT)}

    def send(self, message: msgspec.Struct) -> None:
        """Waits only while the other end is not yet there or far behind. Raises PeerGone."""
        data = self.encoder.encode(message)
        while True:
            try:
                return self.socket.send(data, zmq.NOBLOCK)
            except zmq.Again:
                if self.lifeline in self._wait(zmq.POLLOUT, None):
                    raise PeerGone from None

    def receive(self, timeout_s: float | None) -> list[T]:
        """All that has arrived; waits for the first up to `timeout_s` (None: without end). Raises PeerGone."""
        if messages := list(self._drain()):
            return messages
        ready = self._wait(zmq.POLLIN, timeout_s)
        messages = list(self._drain())
        if not messages and self.lifeline in ready:  # what it still had to say comes first
            raise PeerGone
        return messages

    def _wait(self, what: zmq.PollEvent, timeout_s: float | None) -> dict[Any, int]:
        return dict(self.pollers[what].poll(None if timeout_s is None else round(timeout_s * 1000)))

    def _poller(self, what: zmq.PollEvent) -> zmq.Poller:
        poller = zmq.Poller()
        poller.register(self.socket, what)
        poller.register(self.lifeline, zmq.POLLIN)
        return poller

    def _drain(self) -> Iterable[T]:
        while True:
            try:
                data = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield self.decoder.decode(data)

    def close(self) -> None:
        self.socket.close(linger=0)
        self.socket.context.term()


def frontend_link(address: str, lifeline: int) -> Link[FromEngine]:
    """The side that connects: what it sends before the engine is there waits in its queue."""
    socket = _pair()
    socket.reconnect_ivl = 10  # ms
    socket.sndhwm = 0  # what may be queued is bounded by the sender, who must never block on an engine in a long step
    socket.connect(address)
    return Link(socket, FromEngine, lifeline)


def engine_link(address: str, lifeline: int) -> Link[ToEngine]:
    socket = _pair()
    socket.rcvhwm = 0
    socket.bind(address)
    return Link(socket, ToEngine, lifeline)


def _pair() -> zmq.Socket[bytes]:
    """With a context of its own: the shared instance may belong to the program that uses `LLM`."""
    return zmq.Context().socket(zmq.PAIR)
