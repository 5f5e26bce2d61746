"""The link to an engine on another host: that of `engine.ipc` over TCP, encrypted by CurveZMQ.

The frontend listens on an address of its own for each engine, and knows the only key that may connect. The engine gets
the frontend's public key and its own pair from the actor that starts it. Nothing is unpickled on either side.
"""

from __future__ import annotations

import math
import os
import time
from typing import Any, NamedTuple, TypeVar

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

from penstock.cluster.wire_times import shifted
from penstock.engine.ipc import ENGINE_TURN_BYTES, IpcLink, PeerGone
from penstock.flow.messages import FromEngine, ToEngine

T = TypeVar("T")

# A peer whose host has vanished is noticed after this time; one whose process ends, at once.
HEARTBEAT_MS, SILENCE_MS = 2000, 15_000
_EVENTS = zmq.Event.ACCEPTED | zmq.Event.CONNECTED | zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED


class EngineKeys(NamedTuple):
    """What an engine needs to connect: the frontend's public key and its own pair, in Z85 text."""

    frontend: str
    public: str
    secret: str

    def to_line(self) -> bytes:
        return (" ".join(self) + "\n").encode()

    @staticmethod
    def read(handle: int) -> EngineKeys:
        """From the start of a pipe, which stays open."""
        line = b""
        while not line.endswith(b"\n"):
            piece = os.read(handle, 1)
            if not piece:
                raise EOFError("the keys of the link are missing")
            line += piece
        return EngineKeys(*line.decode().split())


class TcpLink(IpcLink[T]):
    """One end. `lifeline` counts as readable once the connection is lost."""

    def __init__(self, socket: zmq.Socket[bytes], incoming: Any, lifeline: int, turn_bytes: float = math.inf) -> None:
        self._monitor = socket.get_monitor_socket(_EVENTS)
        self._connections: set[int] = set()
        self.linked = False  # a peer with the right key is or was there
        super().__init__(socket, incoming, lifeline, turn_bytes)

    @property
    def monitor_handle(self) -> int:
        return int(self._monitor.fd)

    def send(self, message: msgspec.Struct) -> None:
        if self._lost:  # the socket would keep it for the next connection
            raise PeerGone
        super().send(shifted(message, -time.monotonic()))

    def receive(self, timeout_s: float | None) -> list[T]:
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not (messages := super().receive(timeout_s)):  # or an event of the connection: that is no message
            left_s = until - time.monotonic()
            if left_s <= 0:
                break
            timeout_s = None if timeout_s is None else left_s
        self._read_events()
        now = time.monotonic()
        return [shifted(message, now) for message in messages]  # type: ignore[type-var]

    def close(self) -> None:
        self.socket.disable_monitor()
        self._monitor.close(linger=0)
        super().close()

    def wait(self, what: zmq.PollEvent, timeout_s: float | None) -> dict[Any, int]:
        ready = super().wait(what, 0.0 if self._lost else timeout_s)
        self._read_events()
        return {**ready, self.lifeline: zmq.POLLIN} if self._lost else ready

    @property
    def _lost(self) -> bool:
        return self.linked and not self._connections

    def _read_events(self) -> None:
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)
            if event["event"] == zmq.Event.DISCONNECTED:
                self._connections.discard(event["value"])
            elif event["event"] == zmq.Event.HANDSHAKE_SUCCEEDED:
                self.linked = True
            else:
                self._connections.add(event["value"])

    def make_poller(self, what: zmq.PollEvent) -> zmq.Poller:
        poller = super().make_poller(what)
        poller.register(self._monitor, zmq.POLLIN)
        return poller


class ListeningLink(TcpLink[FromEngine]):
    """The frontend's end: waits for the one engine that has its key."""

    def __init__(self, host: str, lifeline: int) -> None:
        context = zmq.Context()
        public, secret = zmq.curve_keypair()
        engine_public, engine_secret = zmq.curve_keypair()
        self.engine_keys = EngineKeys(public.decode(), engine_public.decode(), engine_secret.decode())
        self._gatekeeper = ThreadAuthenticator(context)
        self._gatekeeper.start()
        self._gatekeeper.configure_curve_callback(domain="*", credentials_provider=_OnlyKey(engine_public))
        socket = _pair(context, secret, public)
        socket.curve_server = True
        socket.sndhwm = 0
        port = socket.bind_to_random_port(f"tcp://{host if ':' not in host else f'[{host}]'}")
        self.address = f"tcp://{host}:{port}"
        super().__init__(socket, FromEngine, lifeline)

    def close(self) -> None:
        self._gatekeeper.stop()
        super().close()


def connect_engine_link(address: str, keys: EngineKeys, lifeline: int) -> TcpLink[ToEngine]:
    socket = _pair(zmq.Context(), keys.secret.encode(), keys.public.encode())
    socket.curve_serverkey = keys.frontend.encode()
    socket.rcvhwm = 0
    link: TcpLink[ToEngine] = TcpLink(socket, ToEngine, lifeline, ENGINE_TURN_BYTES)
    socket.connect(address)
    return link


class _OnlyKey:
    def __init__(self, public: bytes) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        return bool(key == self._public)


def _pair(context: zmq.Context[zmq.Socket[bytes]], secret: bytes, public: bytes) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.PAIR)
    socket.curve_secretkey, socket.curve_publickey = secret, public
    socket.heartbeat_ivl, socket.heartbeat_timeout = HEARTBEAT_MS, SILENCE_MS
    return socket
