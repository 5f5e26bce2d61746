"""Messages over a Unix stream socket: each has its length in front.

Neither sending nor receiving waits. A stream tells of the other end's death by itself, after all that it had sent.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from pathlib import Path

BUFFER_BYTES = 1 << 20  # of the kernel, in each direction
READ_BYTES = 1 << 18  # at once
_LENGTH = struct.Struct("<I")


class FramedSocket:
    """One end. Belongs to one thread."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        self._socket = sock
        self._unsent: deque[memoryview] = deque()
        self._received = bytearray()
        self.unsent_bytes = 0
        self.gone = False  # the other end has closed, or died

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, data: bytes) -> None:
        """What does not fit into the kernel's buffer waits: call `flush` when the socket is writable. Does nothing if
        the other end is gone."""
        if self.gone:
            return
        self._unsent.append(memoryview(_LENGTH.pack(len(data)) + data))
        self.unsent_bytes += len(data) + _LENGTH.size
        if len(self._unsent) == 1:
            self.flush()

    def flush(self) -> None:
        while self._unsent and not self.gone:
            try:
                sent = self._socket.send(self._unsent[0])
            except BlockingIOError:
                return
            except OSError:
                self._lose()
                return
            self.unsent_bytes -= sent
            if sent == len(self._unsent[0]):
                self._unsent.popleft()
            else:
                self._unsent[0] = self._unsent[0][sent:]

    def receive(self, max_bytes: float = float("inf")) -> list[bytes]:
        """The messages that have arrived, up to `max_bytes` or a little more. `gone` is set behind the last one."""
        taken = 0
        while taken < max_bytes:
            try:
                data = self._socket.recv(READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self._lose()
                break
            self._received += data
            taken += len(data)
        return self._split()

    def close(self) -> None:
        self.gone = True
        self._unsent.clear()
        self.unsent_bytes = 0
        self._socket.close()

    def _lose(self) -> None:
        self.gone = True
        self._unsent.clear()
        self.unsent_bytes = 0

    def _split(self) -> list[bytes]:
        received, place, messages = self._received, 0, []
        while len(received) - place >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(received, place)
            end = place + _LENGTH.size + length
            if end > len(received):
                break
            messages.append(bytes(received[place + _LENGTH.size : end]))
            place = end
        del received[:place]
        return messages


def listen_on(path: Path) -> socket.socket:
    """A listening Unix socket that only this user's processes reach, in the place of one that a dead process left."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.setblocking(False)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen()
    return listener
