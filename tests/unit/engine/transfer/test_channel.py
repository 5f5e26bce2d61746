"""Frames between two engines: who may connect, and what becomes of frames that were changed on their way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.engine.transfer import channel
from penstock.engine.transfer.channel import MAX_MESSAGE_BYTES, Channel, transfer_key
from penstock.engine.transfer.messages import Block, Fetch, Taken, ToExporter, ToImporter, TransferError

KEY = transfer_key(b"s" * 32)
FETCH = Fetch("t", "layout", [[0, 1]])
STALL_S = 20.0


class Altered:
    """A socket that alters what it sends."""

    def __init__(self, sock: socket.socket, change: Callable[[bytes], bytes]) -> None:
        self._sock, self._change = sock, change

    def sendall(self, data: bytes) -> None:
        self._sock.sendall(self._change(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class Wire:
    """Two channels that know each other; `change` alters what the connecting one sends from then on."""

    def __init__(self, change: Callable[[bytes], bytes] = bytes) -> None:
        self.sockets = socket.socketpair()
        made: list[Channel] = []
        thread = threading.Thread(target=lambda: made.append(connecting(self.sockets[1])))
        thread.start()
        self.listening = Channel(self.sockets[0], ToExporter, KEY, listens=True, stall_s=STALL_S)
        thread.join()
        (self.connecting,) = made
        self.connecting.socket = Altered(self.connecting.socket, change)  # type: ignore[assignment]

    def open(self) -> tuple[Channel, Channel]:
        return self.listening, self.connecting

    def close(self) -> None:
        for one in self.sockets:
            one.close()


def connecting(sock: socket.socket, key: bytes = KEY) -> Channel:
    return Channel(sock, ToImporter, key, listens=False, stall_s=STALL_S)


@pytest.fixture
def wires() -> Iterator[Callable[..., Wire]]:
    made: list[Wire] = []

    def make(*arguments: Any) -> Wire:
        made.append(Wire(*arguments))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_stranger_takes_a_connection_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much it says: a byte now and then is no sign of an engine."""
    monkeypatch.setattr(channel, "HANDSHAKE_S", 0.2)
    ours, theirs = socket.socketpair()
    enough = threading.Event()

    def drip() -> None:
        for byte in channel.MAGIC * 100:
            if enough.wait(0.02):
                return
            theirs.sendall(bytes([byte]))

    with ours, theirs:
        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            with pytest.raises(TimeoutError):
                Channel(ours, ToExporter, KEY, listens=True, stall_s=STALL_S)
        finally:
            enough.set()
            dripping.join()


def test_messages_and_payloads_go_both_ways(wires: Callable[..., Wire]) -> None:
    listening, other = wires().open()
    other.send(FETCH)
    assert listening.receive() == FETCH
    listening.send(Block(0, 1), memoryview(b"0123456789"))
    memory = bytearray(10)
    assert other.receive(lambda message: memoryview(memory)) == Block(0, 1)
    assert memory == b"0123456789"
    other.send(Taken(1))
    other.send(Taken(2))
    assert [listening.receive(), listening.receive()] == [Taken(1), Taken(2)]


def test_neither_side_talks_to_one_without_the_secret() -> None:
    errors: list[Exception] = []

    def connect() -> None:
        try:
            connecting(two, transfer_key(b"t" * 32))
        except (TransferError, OSError) as error:
            errors.append(error)

    one, two = socket.socketpair()
    with one, two:
        thread = threading.Thread(target=connect)
        thread.start()
        with pytest.raises(TransferError, match="secret"):
            Channel(one, ToExporter, KEY, listens=True, stall_s=STALL_S)
        one.close()
        thread.join()
    assert len(errors) == 1


def test_a_listener_without_the_secret_is_not_believed() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(b"penstock-kv-1\0\0\0" + bytes(32) + bytes(16))  # a nonce, and a proof that is none
        with pytest.raises(TransferError, match="secret"):
            connecting(other)


def test_another_protocol_is_refused() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(b"GET /v1/models HTTP/1.1\r\nhost: penstock.example.com\r\naccept: */*\r\n\r\n")
        with pytest.raises(TransferError, match="the other side is not an engine of this version"):
            connecting(other)


@pytest.mark.parametrize("place", [0, 4, 9, 20, -1])
def test_a_frame_that_was_changed_is_refused(wires: Callable[..., Wire], place: int) -> None:
    """Its lengths, its message, its payload or its MAC."""

    def flip(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[place] ^= 1
        return bytes(changed)

    listening, other = wires(flip).open()
    other.send(FETCH)
    other.socket.shutdown(socket.SHUT_WR)
    with pytest.raises(TransferError):
        listening.receive()


def test_a_frame_that_ends_early_is_no_frame(wires: Callable[..., Wire]) -> None:
    listening, other = wires(lambda data: data[:-3]).open()
    other.send(FETCH)
    other.socket.shutdown(socket.SHUT_WR)
    with pytest.raises(TransferError, match="gone"):
        listening.receive()


def test_a_frame_that_is_repeated_is_refused(wires: Callable[..., Wire]) -> None:
    listening, other = wires(lambda data: data * 2).open()
    other.send(FETCH)
    assert listening.receive() == FETCH
    with pytest.raises(TransferError, match="changed"):
        listening.receive()


def test_lengths_are_bounded(wires: Callable[..., Wire]) -> None:
    listening, other = wires(lambda data: (MAX_MESSAGE_BYTES + 1).to_bytes(4, "little") + data[4:]).open()
    other.send(FETCH)
    with pytest.raises(TransferError, match="at most"):
        listening.receive()


def test_a_payload_has_the_length_that_its_message_calls_for(wires: Callable[..., Wire]) -> None:
    listening, other = wires().open()
    listening.send(Block(0, 0), memoryview(b"0123456789"))
    with pytest.raises(TransferError, match="as many"):
        other.receive(lambda message: memoryview(bytearray(9)))
    listening, other = wires().open()
    listening.send(Block(0, 0), memoryview(b"0123456789"))
    with pytest.raises(TransferError, match="as many"):
        other.receive()
