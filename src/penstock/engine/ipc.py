"""IPC between the frontend and an engine process, and between the ranks of an engine: msgpack of the structs in `flow`
over a ZeroMQ pair.

The socket is a path in a private folder, so that only this user's processes can reach it. Each end also holds a
lifeline: a pipe whose other end is in the other process. It becomes readable when that process ends, for any reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from penstock.flow.messages import FromEngine, ToEngine
from penstock.flow.ranks import FromRank, ToRank
from penstock.system import typed

T = TypeVar("T")

# Bytes of messages that an engine takes between two steps; half a million token ids, ten milliseconds to decode.
ENGINE_TURN_BYTES = 1 << 20


class PeerGone(Exception):
    """The process at the other end has died."""


class IpcLink(Generic[T]):
    """One end of the connection."""

    def __init__(self, socket: zmq.Socket[bytes], incoming: Any, lifeline: int, turn_bytes: float = math.inf) -> None:
        """`turn_bytes` bounds what one call of `receive` returns."""
        self.socket = socket
        self.lifeline = lifeline
        self.turn_bytes = turn_bytes
        self.encoder = msgspec.msgpack.Encoder()
        self.decoder: msgspec.msgpack.Decoder[T] = typed.msgpack_decoder(incoming)
        self.pollers = {what: self.make_poller(what) for what in (zmq.POLLIN, zmq.POLLOUT)}

    def send(self, message: msgspec.Struct) -> None:
        """Waits only while the other end is not connected yet or its queue is full. Raises PeerGone."""
        data = self.encoder.encode(message)
        while True:
            try:
                return self.socket.send(data, zmq.NOBLOCK)
            except zmq.Again:
                if self.lifeline in self.wait(zmq.POLLOUT, None):
                    raise PeerGone from None

    def receive(self, timeout_s: float | None) -> list[T]:
        """Messages that have arrived, until they have `turn_bytes`; waits up to `timeout_s` (None: forever) for the
        first. Raises PeerGone."""
        if messages := list(self._drain()):
            return messages
        ready = self.wait(zmq.POLLIN, timeout_s)
        messages = list(self._drain())
        if not messages and self.lifeline in ready:  # its last messages come first
            raise PeerGone
        return messages

    def wait(self, what: zmq.PollEvent, timeout_s: float | None) -> dict[Any, int]:
        return dict(self.pollers[what].poll(None if timeout_s is None else round(timeout_s * 1000)))

    def make_poller(self, what: zmq.PollEvent) -> zmq.Poller:
        poller = zmq.Poller()
        poller.register(self.socket, what)
        poller.register(self.lifeline, zmq.POLLIN)
        return poller

    def _drain(self) -> Iterable[T]:
        taken = 0
        while taken < self.turn_bytes:
            try:
                data = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            taken += len(data)
            yield self.decoder.decode(data)

    def close(self) -> None:
        self.socket.close(linger=0)
        self.socket.context.term()


def open_frontend_link(address: str, lifeline: int) -> IpcLink[FromEngine]:
    return IpcLink(_connected(address), FromEngine, lifeline)


def open_engine_link(address: str, lifeline: int) -> IpcLink[ToEngine]:
    return IpcLink(_bound(address), ToEngine, lifeline, ENGINE_TURN_BYTES)


def open_link_to_rank(address: str, lifeline: int) -> IpcLink[FromRank]:
    """Of rank 0."""
    return IpcLink(_connected(address), FromRank, lifeline)


def open_rank_link(address: str, lifeline: int) -> IpcLink[ToRank]:
    """Of any other rank."""
    return IpcLink(_bound(address), ToRank, lifeline)


def _connected(address: str) -> zmq.Socket[bytes]:
    """Messages queue here until the process at the other end is there."""
    socket = _pair()
    socket.reconnect_ivl = 10  # ms
    socket.sndhwm = 0  # no limit: the sender bounds its queue, and must not block on an engine in a long step
    socket.connect(address)
    return socket


def _bound(address: str) -> zmq.Socket[bytes]:
    socket = _pair()
    socket.rcvhwm = 0
    socket.bind(address)
    return socket


def _pair() -> zmq.Socket[bytes]:
    """With its own context: the shared one may belong to the program that uses `LLM`."""
    return zmq.Context().socket(zmq.PAIR)
