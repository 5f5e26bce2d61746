"""Publishes the changes of the prefix cache for other routers, as vLLM does: a ZeroMQ PUB socket, whose messages are
the topic, a number of 8 bytes (big-endian, counted from 0) and the msgpack of [time, events]."""

from __future__ import annotations

import time

import msgspec
import zmq

from penstock.cache.kv_events import KvEventLog
from penstock.errors import InvalidSetting

TOPIC = b"kv-events"


class KvPublisher:
    """Sends nothing twice: who connects later, or reads too slowly, has missed what was before."""

    def __init__(self, endpoint: str, log: KvEventLog) -> None:
        """Raises InvalidSetting if the address cannot be listened on."""
        self._log = log
        self._count = 0
        self._encoder = msgspec.msgpack.Encoder()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise InvalidSetting(f"kv_events: cannot listen on {endpoint}: {error}", param="kv_events") from None

    @property
    def endpoint(self) -> str:
        return bytes(self._socket.getsockopt(zmq.LAST_ENDPOINT)).decode().rstrip("\0")

    def publish(self) -> None:
        """What has changed since the last time. Never waits."""
        if events := self._log.take():
            payload = self._encoder.encode((time.time(), events))
            self._socket.send_multipart([TOPIC, self._count.to_bytes(8, "big"), payload], zmq.NOBLOCK)
            self._count += 1

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()
