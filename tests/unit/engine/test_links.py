"""An engine with several frontends: each gets its own sequences, and takes them along when it dies."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.counting_backend import CountingBackend
from penstock.cache import CacheManager
from penstock.engine import ipc
from penstock.engine.linked import LinkedEngine
from penstock.engine.loop import EngineLoop
from penstock.engine.serve import serve
from penstock.flow import Cancel, FinishReason, Frame, Query, Ready, Reply, SamplingParams, Start, Submit
from penstock.flow.messages import Stop
from penstock.schedule import Scheduler
from penstock.settings import Settings, to_wire
from penstock.store.spec import CacheGroup

PATIENCE_S = 30.0


class Engine:
    """An engine in a thread, with its starter's link."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "engine"
        address = f"ipc://{folder / 'link'}"
        self.pipe = os.pipe()
        self.starter = ipc.open_frontend_link(address, self.pipe[0])
        self.seen: list[Any] = []
        cache = CacheManager((CacheGroup(0, (0,)),), (256,), 4, True)
        self.loop = EngineLoop(
            Scheduler(
                cache, step_tokens=64, max_sequences=8, max_waiting=100, policy="fcfs", lookahead=0, context=512,
                recorded=True,
            ),
            CountingBackend(releases=False),
        )  # fmt: skip
        self.link = ipc.open_engine_link(address, self.pipe[0])
        self.thread = threading.Thread(target=lambda: serve(self.link, lambda *_: (self.loop, {"pid": 1})))
        self.thread.start()
        self.starter.send(Start(to_wire(Settings()), b"", str(self.path)))
        self.until(lambda: any(isinstance(one, Ready) for one in self.seen))

    def until(self, done: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            self.seen += self.starter.receive(0.01)
            assert time.monotonic() < deadline

    def ask(self, kind: str) -> Any:
        self.starter.send(Query(len(self.seen), kind))
        before = len(self.seen)
        self.until(lambda: any(isinstance(one, Reply) for one in self.seen[before:]))
        return next(one for one in self.seen[before:] if isinstance(one, Reply)).value

    def close(self) -> None:
        self.starter.send(Stop())
        self.thread.join(PATIENCE_S)
        self.link.close()
        self.starter.close()
        for end in self.pipe:
            os.close(end)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path)
    yield engine
    engine.close()


def frontend(engine: Engine) -> LinkedEngine:
    link = LinkedEngine(engine.path, lambda why: None)
    engine.until(lambda: link.receive() or link.facts)
    return link


def submit(name: str, number: int, tokens: int) -> Submit:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return Submit(name, [1, 2, 3, 4, 5], params, 0, tokens, number=number)


def outputs(frames: list[Any], names: dict[int, str]) -> dict[str, int]:
    """Output tokens by sequence."""
    counts = dict.fromkeys(names.values(), 0)
    for frame in frames:
        if isinstance(frame, Frame):
            for number in frame.pairs()[0]:
                counts[names[number]] += 1
            for delta in frame.deltas:
                counts[delta.id] += len(delta.tokens)
    return counts


def finishes(frames: list[Any]) -> dict[str, FinishReason]:
    deltas = [delta for frame in frames if isinstance(frame, Frame) for delta in frame.deltas]
    return {delta.id: delta.finish for delta in deltas if delta.finish is not None}


def test_each_frontend_gets_its_own_sequences_and_the_starter_the_records(engine: Engine) -> None:
    links = [frontend(engine), frontend(engine)]
    assert all(link.facts == {"pid": 1} for link in links)
    seen: list[list[Any]] = [[], []]
    for place, link in enumerate(links):
        link.submit(submit(f"s{place}", place + 1, 20))
    engine.starter.send(submit("own", 3, 10))

    def all_ended() -> bool:
        for place, link in enumerate(links):
            seen[place] += link.receive()
        return all(map(finishes, seen)) and bool(finishes(engine.seen))

    engine.until(all_ended)
    names = {1: "s0", 2: "s1", 3: "own"}
    for place, frames in enumerate(seen):
        assert finishes(frames) == {f"s{place}": FinishReason.LENGTH}
        assert outputs(frames, names)[f"s{place}"] == 20
        assert sum(outputs(frames, names).values()) == 20  # nothing of others
        assert not any(frame.record for frame in frames if isinstance(frame, Frame))
    assert outputs(engine.seen, names) == {"s0": 0, "s1": 0, "own": 10}
    records = [one.step for one in engine.seen if isinstance(one, Frame) and one.record]
    assert records == list(range(1, len(records) + 1))
    parts = {frame.step for frames in seen for frame in frames if isinstance(frame, Frame) and frame.tokens}
    assert parts <= set(records)
    for link in links:
        link.close()


def test_the_sequences_of_a_frontend_that_dies_are_cancelled(engine: Engine) -> None:
    lost, other = frontend(engine), frontend(engine)
    lost.submit(submit("lost", 1, 400))
    other.submit(submit("kept", 2, 300))
    engine.until(lambda: lost.receive())  # it has begun
    lost.close()
    seen: list[Any] = []
    engine.until(lambda: seen.extend(other.receive()) or finishes(seen))
    assert finishes(seen) == {"kept": FinishReason.LENGTH}
    assert outputs(seen, {1: "lost", 2: "kept"}) == {"lost": 0, "kept": 300}
    assert engine.ask("check") is None
    stats = engine.ask("stats")
    assert stats["running"] == stats["waiting"] == stats["blocks"][0]["held"] == 0
    assert not any("lost" in finishes([frame]) for frame in engine.seen)  # nobody waits for it
    other.close()


def test_queries_are_answered_to_who_asks(engine: Engine) -> None:
    links = [frontend(engine), frontend(engine)]
    for link in links:
        link.query(Query(7, "stats"))
    for link in links:
        seen: list[Any] = []
        engine.until(lambda link=link, seen=seen: seen.extend(link.receive()) or seen)  # type: ignore[misc]
        assert [reply.id for reply in seen] == [7]
    for link in links:
        link.close()


def test_an_open_sequence_ends_with_its_engine(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "engine"))
        listener.listen()
        link = LinkedEngine(tmp_path / "engine", lambda why: None)
        accepted, _ = listener.accept()
    link.submit(submit("s", 1, 4))
    link.query(Query(1, "stats"))
    link.cancel(Cancel("other"))
    accepted.close()
    frame, reply = link.receive()
    assert finishes([frame]) == {"s": FinishReason.ERROR}
    assert isinstance(reply, Reply)
    assert reply.error == link.dead == "the engine process died"
    assert link.receive() == []
    link.close()
