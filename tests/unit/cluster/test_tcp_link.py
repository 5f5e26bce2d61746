"""The link between hosts: only the right key connects, and clocks may differ."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from penstock.cluster import tcp_link
from penstock.cluster.tcp_link import EngineKeys, ListeningLink, TcpLink, connect_engine_link
from penstock.engine.ipc import PeerGone
from penstock.flow import Delta, FinishReason, Frame, Ready, SamplingParams, Submit, Timings
from penstock.flow.messages import StartPhase, ToEngine


@pytest.fixture
def lifeline() -> Iterator[int]:
    ends = os.pipe()
    yield ends[0]
    for end in ends:
        os.close(end)


@pytest.fixture
def frontend(lifeline: int) -> Iterator[ListeningLink]:
    link = ListeningLink("127.0.0.1", lifeline)
    yield link
    link.close()


@pytest.fixture
def engine(frontend: ListeningLink, lifeline: int) -> Iterator[TcpLink[ToEngine]]:
    link = connect_engine_link(frontend.address, frontend.engine_keys, lifeline)
    yield link
    link.close()


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_messages_go_both_ways_in_order(frontend: ListeningLink, engine: TcpLink[ToEngine]) -> None:
    engine.send(StartPhase("one"))
    assert frontend.receive(30.0) == [StartPhase("one")]
    assert frontend.linked
    for number in range(100):
        frontend.send(Submit(str(number), [number], SamplingParams(), 0, 1))
    found: list[ToEngine] = []
    while len(found) < 100:
        found += engine.receive(30.0)
    assert [message.id for message in found if isinstance(message, Submit)] == [str(number) for number in range(100)]


def test_another_key_does_not_connect(frontend: ListeningLink, lifeline: int) -> None:
    public, secret = (part.decode() for part in zmq.curve_keypair())
    stranger = connect_engine_link(
        frontend.address, EngineKeys(frontend.engine_keys.frontend, public, secret), lifeline
    )
    stranger.send(StartPhase("let me in"))
    plain = zmq.Context().socket(zmq.PAIR)  # without encryption
    plain.connect(frontend.address)
    plain.send(b"\x93\xa5Frame\x90\xc0")
    engine = connect_engine_link(frontend.address, frontend.engine_keys, lifeline)
    engine.send(StartPhase("the right one"))
    assert frontend.receive(30.0) == [StartPhase("the right one")]
    stranger.close()
    plain.close(linger=0)
    plain.context.term()
    frontend.send(Submit("a", [1], SamplingParams(), 0, 1))
    assert [type(message) for message in engine.receive(30.0)] == [Submit]
    assert frontend.receive(0.05) == []  # that strangers have gone is no death
    engine.close()


def test_keys_travel_through_a_pipe_that_stays_open() -> None:
    keys = EngineKeys("a", "b", "c")
    reading, writing = os.pipe()
    os.write(writing, keys.to_line() + b"more")
    assert EngineKeys.read(reading) == keys
    assert os.read(reading, 10) == b"more"
    os.close(writing)
    with pytest.raises(EOFError):
        EngineKeys.read(reading)
    os.close(reading)


@pytest.mark.parametrize("dies", ["engine", "frontend"])
def test_a_lost_connection_is_the_death_of_the_peer(lifeline: int, dies: str) -> None:
    frontend = ListeningLink("127.0.0.1", lifeline)
    engine = connect_engine_link(frontend.address, frontend.engine_keys, lifeline)
    engine.send(Ready({}))
    assert frontend.receive(30.0) == [Ready({})]
    dying, staying = (engine, frontend) if dies == "engine" else (frontend, engine)
    dying.close()
    with pytest.raises(PeerGone):  # the first may have been the end of the handshake
        staying.receive(30.0) or staying.receive(30.0)
    with pytest.raises(PeerGone):
        staying.send(StartPhase("is there anybody?"))
    staying.close()


def test_hosts_may_have_different_clocks(
    frontend: ListeningLink, engine: TcpLink[ToEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = {"now": 1000.0}
    monkeypatch.setattr(tcp_link.time, "monotonic", lambda: clock["now"])
    engine.send(StartPhase("one"))
    until(lambda: bool(frontend.receive(0.01)))
    frontend.send(Submit("a", [1], SamplingParams(), 0, 1, arrival=998.5))
    clock["now"] = 50.0  # the engine's host has started later
    (submit,) = engine.receive(30.0)
    assert isinstance(submit, Submit)
    assert submit.arrival == pytest.approx(48.5)
    timings = Timings(48.5, 50.0, 51.0, 52.0)
    clock["now"] = 52.0
    engine.send(Frame([Delta(id="a", finish=FinishReason.END, timings=timings), Delta(id="b", tokens=[1])]))
    clock["now"] = 1003.5
    (frame,) = frontend.receive(30.0)
    assert isinstance(frame, Frame)
    ended = frame.deltas[0].timings
    assert ended is not None
    assert (ended.arrival, ended.admitted, ended.first_token, ended.finished) == (1000.0, 1001.5, 1002.5, 1003.5)
    assert frame.deltas[1].timings is None
