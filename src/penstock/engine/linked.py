"""An engine that another process has started, as a further frontend sees it: a link over its Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.engine.remote import RemoteEngine
from penstock.flow import Frame, Reply
from penstock.flow.messages import FromEngine, ToEngine
from penstock.system import typed
from penstock.system.framed_socket import FramedSocket

LOOK_S = 0.05  # between two looks for an engine that starts


class LinkedEngine(RemoteEngine):
    """Implements flow.WatchedEngine. Belongs to one event loop."""

    def __init__(self, path: Path, end_engine: Callable[[str], None]) -> None:
        """The engine listens at `path`; raises OSError otherwise. `end_engine` has its process killed, and says why."""
        super().__init__()
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(str(path))
        except OSError:
            sock.close()
            raise
        self._framed = FramedSocket(sock)
        self._end_engine = end_engine
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[FromEngine] = typed.msgpack_decoder(FromEngine)
        self._writing = False

    @property
    def handles(self) -> tuple[int, ...]:
        return (self._framed.fileno(),)

    def receive(self, timeout_s: float | None = None) -> list[Frame | Reply]:
        """Never waits."""
        return super().receive(0.0)

    def _receive(self, timeout_s: float | None) -> list[FromEngine]:
        if self.dead is not None:
            return []
        messages = [self._decoder.decode(data) for data in self._framed.receive()]
        if self._framed.gone:
            self.dead = "the engine process died"
        return messages

    def end(self, why: str) -> None:
        self._end_engine(why)
        self.dead = self.dead or why

    def close(self) -> None:
        """The link only: the engine belongs to the process that started it, which cancels what is open here."""
        self.dead = self.dead or "the engine was closed"
        self._stop_writing()
        self._framed.close()

    kill = close

    def _send(self, message: ToEngine) -> None:
        if self.dead is None:
            self._framed.send(self._encoder.encode(message))
            if self._framed.unsent_bytes and not self._writing:  # the engine is in a long step
                self._writing = True
                asyncio.get_running_loop().add_writer(self._framed.fileno(), self._flush)

    def _flush(self) -> None:
        self._framed.flush()
        if not self._framed.unsent_bytes:
            self._stop_writing()

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            asyncio.get_running_loop().remove_writer(self._framed.fileno())


async def wait_for_engine(path: Path, timeout_s: float) -> None:
    """Until an engine listens at `path`. Returns also if none does in time: a link cannot be made then."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.connect(str(path))
            return
        await asyncio.sleep(LOOK_S)
