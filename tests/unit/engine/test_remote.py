"""What is open at an engine in another process ends exactly once, however that engine ends."""

from __future__ import annotations

import pytest

from penstock.engine.remote import RemoteEngine
from penstock.errors import EngineDied, OutOfMemory
from penstock.flow import Cancel, Delta, Failure, FinishReason, Frame, Query, Ready, Reply, SamplingParams, Submit
from penstock.flow.messages import FromEngine, StartPhase, ToEngine


class Scripted(RemoteEngine):
    """Its link brings what a test puts into it."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        super().__init__(self.phases.append)
        self.sent: list[ToEngine] = []
        self.coming: list[FromEngine] = []
        self.waits: list[float | None] = []

    def _send(self, message: ToEngine) -> None:
        self.sent.append(message)

    def _receive(self, timeout_s: float | None) -> list[FromEngine]:
        self.waits.append(timeout_s)
        coming, self.coming = self.coming, []
        return coming


def submit(name: str) -> Submit:
    return Submit(name, [1], SamplingParams(), 0, 1)


def test_what_is_open_when_the_engine_dies_ends_once() -> None:
    engine = Scripted()
    for name in ("a", "b", "c"):
        engine.submit(submit(name))
    engine.query(Query(1, "stats"))
    engine.query(Query(2, "stats"))
    engine.cancel(Cancel("b"))
    first = Frame([Delta(id="a", tokens=[7], finish=FinishReason.END), Delta(id="b", tokens=[7])])
    engine.coming = [first, Reply(1)]
    assert engine.receive() == [first, Reply(1)]
    engine.coming = [Frame([Delta(id="b", tokens=[8])])]  # the last that was on its way
    engine.dead = "the engine process died (signal 9)"
    brought, ended, reply = engine.receive()
    assert brought == Frame([Delta(id="b", tokens=[8])])
    assert isinstance(ended, Frame)
    assert [(delta.id, delta.finish, delta.code) for delta in ended.deltas] == [
        (name, FinishReason.ERROR, EngineDied.code) for name in ("b", "c")
    ]
    assert reply == Reply(2, error=engine.dead)
    assert engine.receive() == []
    for send in (lambda: engine.submit(submit("d")), lambda: engine.query(Query(3, "stats"))):
        with pytest.raises(EngineDied, match="signal 9"):
            send()
    assert len(engine.sent) == 6


def test_it_waits_only_for_what_is_open() -> None:
    engine = Scripted()
    engine.receive()
    engine.submit(submit("a"))
    engine.receive()
    engine.receive(0.5)
    assert engine.waits == [0.0, None, 0.5]


def test_what_it_says_of_its_start() -> None:
    engine = Scripted()
    engine.coming = [StartPhase("loading weights"), Ready({"device": "cpu"})]
    assert engine.receive() == []
    assert (engine.phases, engine.facts, engine.failure) == (["loading weights"], {"device": "cpu"}, None)
    engine.coming = [Failure(OutOfMemory.code, "too little memory", "kv_memory")]
    engine.receive()
    assert isinstance(engine.failure, OutOfMemory)
    assert engine.failure.param == "kv_memory"
