"""One authenticated connection between two engines of a server: frames over a stream socket.

Both sides prove that they have the server's secret before anything else is read (a challenge each way). Every frame
carries a MAC under a key of this connection, over its place in the stream too: frames that are changed, cut, repeated
or left out end the transfer. Contents are not encrypted.

    frame = length of the message, length of the payload, message (msgpack), payload, MAC
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import time
from hashlib import blake2b
from typing import Any

import msgspec

from penstock.engine.transfer.messages import Message, TransferError
from penstock.system import typed

MAGIC = b"penstock-kv-1\0\0\0"
NONCE_BYTES = 32
MAC_BYTES = 16
MAX_MESSAGE_BYTES = 4 << 20  # indices of a million blocks
STALL_S = 10.0  # without a byte of the other side
HANDSHAKE_S = 5.0  # for the whole handshake: a peer without the secret holds a connection no longer than this
_LENGTHS = struct.Struct("<II")
_PLACE = struct.Struct("<cQ")


def transfer_key(secret: bytes) -> bytes:
    """From the server's secret, for nothing else."""
    return blake2b(key=secret, person=b"kv transfer").digest()


class Channel:
    """One end. Belongs to one thread."""

    def __init__(self, sock: socket.socket, incoming: Any, key: bytes, *, listens: bool, stall_s: float = STALL_S):
        """Authenticates both sides: raises TransferError, or OSError. `incoming`: the type of messages received."""
        self.socket = sock
        sock.settimeout(stall_s)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder: msgspec.msgpack.Decoder[Any] = typed.msgpack_decoder(incoming)
        self._encoder = msgspec.msgpack.Encoder()
        self._sent = self._received = 0  # frames
        self._own, self._other = (b"l", b"c") if listens else (b"c", b"l")
        self._stall_s = stall_s
        self._key = self._authenticate(key, listens)
        sock.settimeout(stall_s)

    def _authenticate(self, key: bytes, listens: bool) -> bytes:
        nonce, until = secrets.token_bytes(NONCE_BYTES), time.monotonic() + min(HANDSHAKE_S, self._stall_s)
        self.socket.sendall(MAGIC + nonce)
        opening = self._read(len(MAGIC) + NONCE_BYTES, until)
        if opening[: len(MAGIC)] != MAGIC:
            raise TransferError("refused", "the other side is not an engine of this version")
        other = opening[len(MAGIC) :]
        nonces = nonce + other if listens else other + nonce
        if not listens:
            self.socket.sendall(_mac(key, b"connects", nonces))
        proof = self._read(MAC_BYTES, until)
        if not hmac.compare_digest(proof, _mac(key, b"connects" if listens else b"listens", nonces)):
            raise TransferError("refused", "the other side does not have this server's secret")
        if listens:
            self.socket.sendall(_mac(key, b"listens", nonces))
        return blake2b(nonces, key=key, person=b"kv session").digest()

    def send(self, message: Message, payload: memoryview | None = None) -> None:
        data = self._encoder.encode(message)
        head = _LENGTHS.pack(len(data), 0 if payload is None else payload.nbytes) + data
        mac = self._mac_of(self._own, self._sent, head)
        self._sent += 1
        if payload is None:
            self.socket.sendall(head + mac.digest())
            return
        mac.update(payload)
        self.socket.sendall(head)
        self.socket.sendall(payload)
        self.socket.sendall(mac.digest())

    def receive(self, payload_for: Any = None) -> Any:
        """The next message. `payload_for(message)` gives the memory for the payload of a message that has one; what it
        has is valid once this returns."""
        lengths = self._read(_LENGTHS.size)
        size, payload_size = _LENGTHS.unpack(lengths)
        if size > MAX_MESSAGE_BYTES:
            raise TransferError("corrupt", f"a message of {size} bytes: at most {MAX_MESSAGE_BYTES}")
        data = self._read(size)
        mac = self._mac_of(self._other, self._received, lengths + data)
        self._received += 1
        try:
            message = self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise TransferError("corrupt", f"a message cannot be read: {error}") from None
        memory = None if payload_for is None else payload_for(message)
        if payload_size != (0 if memory is None else memory.nbytes):
            raise TransferError("corrupt", f"{payload_size} bytes behind a message that does not have as many")
        if memory is not None:
            self.read_into(memory)
            mac.update(memory)
        if not hmac.compare_digest(self._read(MAC_BYTES), mac.digest()):
            raise TransferError("corrupt", "a frame was changed on its way")
        return message

    def read_into(self, memory: memoryview, until: float | None = None) -> None:
        """`until`: when all of it must be there, however much comes meanwhile."""
        place = 0
        while place < memory.nbytes:
            if until is not None:
                self.socket.settimeout(max(until - time.monotonic(), 1e-6))
            count = self.socket.recv_into(memory[place:])
            if not count:
                raise TransferError("connection", "the other side is gone")
            place += count

    def _read(self, size: int, until: float | None = None) -> bytes:
        data = bytearray(size)
        self.read_into(memoryview(data), until)
        return bytes(data)

    def _mac_of(self, sender: bytes, place: int, head: bytes) -> blake2b:
        return blake2b(_PLACE.pack(sender, place) + head, digest_size=MAC_BYTES, key=self._key)


def _mac(key: bytes, role: bytes, nonces: bytes) -> bytes:
    return blake2b(role + nonces, digest_size=MAC_BYTES, key=key, person=b"kv handshake").digest()
