"""Clients that go away, do not read, or never finish what they began to say: their work ends and nothing is left."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.server_process import PATIENCE_S, Server, until
from helpers.tiny_models import ENDLESS_TOKENS

ENDLESS: dict[str, Any] = {"prompt": "on and on", "max_tokens": ENDLESS_TOKENS, "ignore_eos": True, "seed": 1}
# So much that no buffer on the way takes it all: megabytes.
LARGE: dict[str, Any] = {"prompt": "a", "n": 24, "max_tokens": 200, "ignore_eos": True, "logprobs": 20, "seed": 1}


class Caller:
    """A client on a bare socket, which can do all that a library would not."""

    def __init__(self, server: Server, *, receive_buffer: int | None = None) -> None:
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        self.socket = socket.socket()
        self.socket.settimeout(PATIENCE_S)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect((host, int(port)))
        self.address = "{}:{}".format(*self.socket.getsockname())

    def post(self, body: dict[str, Any], *, part: int | None = None) -> None:
        data = json.dumps(body).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}"
        )
        self.socket.sendall(head.encode() + b"\r\n\r\n" + data[:part])

    def rest(self) -> bytes:
        """All that comes until the server hangs up."""
        received = bytearray()
        try:
            while data := self.socket.recv(1 << 20):
                received += data
        except ConnectionResetError:
            pass
        return bytes(received)

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


@pytest.fixture(scope="module")
def impatient(tiny: Path) -> Iterator[Server]:
    with Server(tiny, "--kv-memory", "100MB", "--stall-s", "1") as server:
        yield server


def generated(server: Server) -> float:
    return server.metric("generation_tokens_total")


def connections(server: Server) -> int:
    count = 0
    for entry in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            count += str(entry.readlink()).startswith("socket:")
    return count


def test_a_stream_that_nobody_follows_any_more(server: Server) -> None:
    before, cancelled = generated(server), server.metrics().get("penstock_requests_total{finish=cancelled}", 0)
    body = {**ENDLESS, "model": server.model, "stream": True, "n": 2}
    with httpx.stream("POST", f"{server.api}/completions", json=body, timeout=PATIENCE_S) as response:
        lines = response.iter_lines()
        for _ in range(8):
            next(lines)
    until(server.idle, "the end of the request")
    assert 4 <= generated(server) - before < ENDLESS_TOKENS
    assert server.metric("requests_total{finish=cancelled}") == cancelled + 2


def test_an_answer_that_nobody_waits_for_any_more(server: Server) -> None:
    before = generated(server)
    with Caller(server) as caller:
        caller.post({**ENDLESS, "model": server.model})
        until(lambda: server.metric("num_requests_running") == 1, "the start of the request")
    until(server.idle, "the end of the request")
    assert generated(server) - before < ENDLESS_TOKENS / 2


def test_several_prompts_of_one_request(server: Server) -> None:
    with Caller(server) as caller:
        caller.post({**ENDLESS, "model": server.model, "prompt": ["a", "b", "c"], "n": 2})
        until(lambda: server.metric("num_requests_running") == 6, "the start of the request")
    until(server.idle, "the end of the request")


def test_half_a_request(server: Server) -> None:
    """Is not worth a trace in the log."""
    with Caller(server) as caller:
        caller.post({**ENDLESS, "model": server.model}, part=20)
        until(lambda: server.metric("event_loop_tasks") > 4, "the start of the request")
    until(lambda: "POST /v1/completions 499" in server.log, "the end of the request")
    assert "Traceback" not in server.log
    assert server.idle()


def test_a_slow_reader_gets_everything(server: Server) -> None:
    """In fewer events than tokens: what piled up meanwhile comes at once."""
    asked = httpx.post(f"{server.api}/completions", json={**LARGE, "model": server.model}, timeout=PATIENCE_S)
    whole = asked.json()
    with Caller(server, receive_buffer=4096) as caller:
        caller.post({**LARGE, "model": server.model, "stream": True})
        assert caller.socket.recv(1)
        until(lambda: server.metric("num_requests_running") == 0, "the end of the work")
        assert server.metric("open_requests") == 1
        received = bytearray()
        while not received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            received += caller.socket.recv(1 << 20)
    texts = {choice["index"]: "" for choice in whole["choices"]}
    events = 0
    for line in received.split(b"\n"):
        if line.startswith(b'data: {"id"'):
            (choice,) = json.loads(line.removeprefix(b"data: "))["choices"]
            texts[choice["index"]] += choice["text"]
            events += 1
    assert list(texts.values()) == [choice["text"] for choice in whole["choices"]]
    assert events < LARGE["n"] * LARGE["max_tokens"] / 2
    until(server.idle, "the end of the request")


def test_a_client_that_does_not_read_is_dropped(impatient: Server) -> None:
    sockets, dropped = connections(impatient), impatient.log.count("does not read")
    before = impatient.resident_bytes()
    with Caller(impatient, receive_buffer=4096) as caller:
        caller.post({**LARGE, "model": impatient.model, "stream": True, "max_tokens": 2000})
        assert caller.socket.recv(1)
        until(impatient.idle, "the end of the request")
        assert impatient.log.count("does not read") == dropped + 1
        until(lambda: connections(impatient) == sockets, "the end of the connection")
        assert b"[DONE]" not in caller.rest()
    assert "Traceback" not in impatient.log
    assert impatient.resident_bytes() - before < 200e6


def test_one_that_does_not_read_the_little_there_is(impatient: Server) -> None:
    """Too little for the server to have to wait: the kernel has it all, and is the one to lose patience."""
    dropped = impatient.log.count("does not read")
    (engine,) = impatient.engines()
    with Caller(impatient, receive_buffer=4096) as caller:
        echoed = {**ENDLESS, "prompt": "ta" * 5000, "echo": True}  # more than the window takes
        caller.post({**echoed, "model": impatient.model, "stream": True})
        assert caller.socket.recv(1)
        os.kill(engine, signal.SIGSTOP)
        try:
            until(lambda: impatient.log.count("does not read") > dropped, "the end of the connection")
        finally:
            os.kill(engine, signal.SIGCONT)
        until(impatient.idle, "the end of the request")
        assert b"[DONE]" not in caller.rest()
    assert "Traceback" not in impatient.log
