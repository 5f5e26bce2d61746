"""The links of an engine process: one to the process that started it, and one to each further frontend.

The starter's link carries the start, the step records and the end. Further frontends connect to a Unix socket in a
private folder; each gets the Deltas of its own sequences, and no records. When one of them dies, its sequences are
cancelled, and the others notice nothing.
"""

from __future__ import annotations

import logging
import socket
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq

from penstock.engine.ipc import ENGINE_TURN_BYTES, IpcLink
from penstock.flow import Cancel, Delta, Frame, Query, Ready, Reply, Submit
from penstock.flow.messages import FromEngine, ToEngine
from penstock.system import typed
from penstock.system.framed_socket import FramedSocket, listen_on

logger = logging.getLogger(__name__)

MAX_UNSENT_BYTES = 256 << 20  # for a frontend that does not read: it counts as dead then


class FrontendLink:
    """To one frontend that connected."""

    def __init__(self, sock: socket.socket) -> None:
        self.framed = FramedSocket(sock)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Any] = typed.msgpack_decoder(ToEngine)

    def send(self, message: FromEngine) -> None:
        self.framed.send(self._encoder.encode(message))

    def receive(self) -> list[Submit | Cancel | Query]:
        return [self._decoder.decode(data) for data in self.framed.receive(ENGINE_TURN_BYTES)]

    @property
    def gone(self) -> bool:
        return self.framed.gone or self.framed.unsent_bytes > MAX_UNSENT_BYTES


Link = IpcLink[ToEngine] | FrontendLink


class EngineLinks:
    """Without further frontends, nothing but the starter's link."""

    def __init__(self, starter: IpcLink[ToEngine]) -> None:
        self.starter = starter
        self._listener: socket.socket | None = None
        self._facts: Callable[[], dict[str, Any]] = dict
        self._links: dict[int, FrontendLink] = {}  # by file descriptor
        self._owners: dict[str, FrontendLink] = {}  # of sequences by id; others are the starter's
        self._poller = zmq.Poller()
        self._records = 0  # sent

    def listen(self, path: str, facts: Callable[[], dict[str, Any]]) -> None:
        """For further frontends, from now on. `facts` are sent to each."""
        self._listener = listen_on(Path(path))
        self._facts = facts
        self._poller.register(self.starter.socket, zmq.POLLIN)
        self._poller.register(self.starter.lifeline, zmq.POLLIN)
        self._poller.register(self._listener.fileno(), zmq.POLLIN)

    def receive(self, timeout_s: float | None) -> list[tuple[Link, ToEngine]]:
        """Messages that have arrived, with their senders; waits for the first. Raises PeerGone if the starter is."""
        if self._listener is None:
            return [(self.starter, message) for message in self.starter.receive(timeout_s)]
        ready = dict(self._poller.poll(None if timeout_s is None else round(timeout_s * 1000)))
        messages: list[tuple[Link, ToEngine]] = []
        if self.starter.socket in ready or self.starter.lifeline in ready:
            messages += [(self.starter, message) for message in self.starter.receive(0.0)]
        if self._listener.fileno() in ready:
            self._accept()
        for handle, link in list(self._links.items()):
            if handle in ready:
                link.framed.flush()
                messages += [(link, message) for message in link.receive()]
                self._watch(handle, link)
            if link.gone:
                messages += self._drop(handle)
        for sender, message in messages:
            if isinstance(message, Submit) and isinstance(sender, FrontendLink):
                self._owners[message.id] = sender
        return messages

    def send(self, link: Link, message: Reply | Frame) -> None:
        """To the sender of what it answers."""
        if isinstance(message, Frame):
            self._forget(message.deltas)
        if isinstance(link, FrontendLink):
            link.send(message)
            self._watch(link.framed.fileno(), link)
        else:
            link.send(message)

    def send_frame(self, frame: Frame) -> None:
        """Each link its part of a step's Deltas. The record goes to the starter, before all others."""
        if self._listener is None:
            self.starter.send(frame.packed())
            return
        parts: defaultdict[FrontendLink | None, list[Delta]] = defaultdict(list)
        owner_of = self._owners.get
        for delta in frame.deltas:
            parts[owner_of(delta.id)].append(delta)
        self._records += frame.record is not None
        step = self._records if frame.record is not None else 0
        own = parts.pop(None, [])
        if own or frame.record is not None:
            self.starter.send(Frame(own, frame.record, step=step).packed())
        for link, deltas in parts.items():
            assert link is not None
            link.send(Frame(deltas, step=step).packed())
            if link.framed.unsent_bytes:
                self._watch(link.framed.fileno(), link)
        self._forget(frame.deltas)

    def close(self) -> None:
        """The links of additional frontends."""
        if self._listener is not None:
            self._listener.close()
        for link in self._links.values():
            link.framed.close()

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:  # it has gone meanwhile
            return
        link = FrontendLink(sock)
        link.send(Ready(self._facts()))
        self._links[sock.fileno()] = link
        self._watch(sock.fileno(), link)

    def _drop(self, handle: int) -> list[tuple[Link, ToEngine]]:
        """A frontend is gone: what cancels its sequences."""
        link = self._links.pop(handle)
        self._poller.unregister(handle)
        link.framed.close()
        owned = [id for id, owner in self._owners.items() if owner is link]
        if owned:
            logger.warning("a frontend is gone: %d of its sequences are cancelled", len(owned))
        return [(link, Cancel(id)) for id in owned]

    def _forget(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            if delta.finish is not None:
                self._owners.pop(delta.id, None)

    def _watch(self, handle: int, link: FrontendLink) -> None:
        """For messages, and for room while something is unsent."""
        if handle in self._links:
            self._poller.register(handle, zmq.POLLIN | (zmq.POLLOUT if link.framed.unsent_bytes else 0))
