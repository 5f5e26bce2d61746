"""What a frontend passes on to the control process, with a control process that answers as the test wants."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

from starlette.types import Message

from penstock.frontends.proxy import ControlProxy

SCOPE = {
    "type": "http", "method": "POST", "raw_path": b"/v1/files", "query_string": b"", "headers": [(b"host", b"a")],
}  # fmt: skip


class Control:
    """Answers one request once it has its headers, and closes the connection."""

    def __init__(self, path: Path, answer: bytes) -> None:
        self.path, self.answer = str(path), answer
        self.closed = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def _answer(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            while not connection.recv(1 << 16).endswith(b"\r\n\r\n"):
                pass
            connection.sendall(self.answer)
        self.closed.set()

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._listener.close()


def answered(control: Control, bodies: list[bytes]) -> list[Message]:
    """What the client gets. Its body is sent once the control process has closed its end."""
    messages: list[Message] = []

    async def receive() -> Message:
        if not bodies:
            await asyncio.Event().wait()  # the client does not leave
        control.closed.wait(10.0)  # nothing is read meanwhile
        return {"type": "http.request", "body": bodies.pop(0), "more_body": bool(bodies)}

    async def send(message: Message) -> None:
        messages.append(message)

    asyncio.run(ControlProxy(control.path)(SCOPE, receive, send))
    return messages


def test_an_answer_that_comes_before_the_body_was_read_arrives(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 413 Too Large\r\ncontent-length: 9\r\nconnection: close\r\n\r\ntoo large"
    with Control(tmp_path / "control", answer) as control:
        start, *rest = answered(control, [b"x" * (1 << 20)] * 8)
    assert start["status"] == 413
    assert b"".join(message["body"] for message in rest) == b"too large"
    assert not rest[-1]["more_body"]


def test_headers_that_a_frontend_sets_are_not_there_twice(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nDate: now\r\nServer: control\r\nX-Request-Id: r\r\ncontent-length: 0\r\n\r\n"
    with Control(tmp_path / "control", answer) as control:
        start, *_ = answered(control, [b""])
    assert start["headers"] == [(b"x-request-id", b"r"), (b"content-length", b"0")]
