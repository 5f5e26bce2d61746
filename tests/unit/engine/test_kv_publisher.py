"""A real subscriber of the events of a cache."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
import zmq

from penstock.cache.kv_events import KvEventLog
from penstock.engine.kv_publisher import TOPIC, KvPublisher
from penstock.errors import InvalidSetting


@pytest.fixture
def log() -> KvEventLog:
    return KvEventLog(4, "CPU")


@pytest.fixture
def publisher(log: KvEventLog) -> Iterator[KvPublisher]:
    made = KvPublisher("tcp://127.0.0.1:0", log)
    yield made
    made.close()


def test_messages_have_a_topic_a_number_and_events(publisher: KvPublisher, log: KvEventLog) -> None:
    context = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.subscribe(TOPIC)
    socket.connect(publisher.endpoint)
    found: list[tuple[bytes, bytes, bytes]] = []
    while len(found) < 2:  # until the subscription has arrived, nothing is sent to it
        log.clear()
        publisher.publish()
        if socket.poll(20):
            topic, number, payload = socket.recv_multipart()
            found.append((topic, number, payload))
    socket.close(linger=0)
    context.term()
    assert {topic for topic, _, _ in found} == {b"kv-events"}
    first, second = (int.from_bytes(number, "big") for _, number, _ in found)
    assert second == first + 1
    when, events = msgspec.msgpack.decode(found[0][2])
    assert isinstance(when, float)
    assert events == [["AllBlocksCleared"]]


def test_nothing_new_is_no_message(publisher: KvPublisher, log: KvEventLog) -> None:
    for _ in range(3):
        publisher.publish()
    assert publisher._count == 1


def test_an_address_that_is_taken_is_an_error(publisher: KvPublisher, log: KvEventLog) -> None:
    with pytest.raises(InvalidSetting, match=r"kv_events: cannot listen on tcp://127.0.0.1:.*: Address already in use"):
        KvPublisher(publisher.endpoint, log)
