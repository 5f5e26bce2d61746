"""The engine of a process, asleep and awake."""

from typing import Any

import pytest

from helpers.counting_backend import CountingBackend
from penstock.cache import CacheManager
from penstock.engine.loop import EngineLoop
from penstock.engine.serve import EngineHost
from penstock.errors import OutOfMemory
from penstock.flow import Cancel, FinishReason, Frame, Query, Reply, SamplingParams, Submit
from penstock.schedule import Scheduler
from penstock.store.spec import CacheGroup

PROMPT = list(range(9))


class World:
    def __init__(self, *, releases: bool) -> None:
        self.builds = 0
        self.releases = releases
        self.host = EngineHost(self.build)

    def build(self) -> tuple[EngineLoop, dict[str, Any]]:
        self.builds += 1
        cache = CacheManager((CacheGroup(0, (0,)),), (32,), 4, True)
        scheduler = Scheduler(
            cache, step_tokens=32, max_sequences=4, max_waiting=100, policy="fcfs", lookahead=0, context=32
        )
        return EngineLoop(scheduler, CountingBackend(releases=self.releases)), {"build": self.builds}

    @property
    def loop(self) -> EngineLoop:
        assert self.host.loop is not None
        return self.host.loop

    @property
    def backend(self) -> CountingBackend:
        backend = self.loop.backend
        assert isinstance(backend, CountingBackend)
        return backend

    def ask(self, kind: str) -> Reply:
        reply = self.host.handle(Query(7, kind))
        assert isinstance(reply, Reply)
        return reply

    def generate(self, name: str) -> int:
        """Run a request to its end; returns its cached tokens."""
        assert self.host.handle(submit(name)) is None
        cached = 0
        while self.host.has_work:
            frame = self.loop.step()
            cached = max([cached, *(delta.cached_tokens for delta in frame.deltas)]) if frame else cached
        self.loop.scheduler.check_integrity()
        return cached


def submit(name: str) -> Submit:
    return Submit(name, PROMPT, SamplingParams(max_tokens=2), 0, 2)


@pytest.mark.parametrize("releases", [False, True])
def test_an_engine_wakes_with_an_empty_cache(releases: bool) -> None:
    world = World(releases=releases)
    world.generate("a")
    assert world.generate("b") == 8
    assert world.ask("sleep").error is None
    assert world.ask("sleep").error is None  # it sleeps already
    assert world.ask("stats").error == "the engine is asleep"
    assert world.host.handle(Cancel("b")) is None
    assert (world.host.loop is not None) == releases
    assert world.ask("wake").value == {"build": 1 if releases else 2}
    assert world.ask("wake").value == world.host.facts  # it is awake already
    assert world.builds == (1 if releases else 2)
    assert world.generate("c") == 0
    assert world.generate("d") == 8


@pytest.mark.parametrize("releases", [False, True])
def test_a_request_wakes_it(releases: bool) -> None:
    world = World(releases=releases)
    world.ask("sleep")
    assert world.generate("a") == 0
    assert not world.backend.released


def test_it_does_not_sleep_while_it_has_requests() -> None:
    world = World(releases=True)
    world.host.handle(submit("a"))
    assert "it can sleep when they have ended" in (world.ask("sleep").error or "")
    assert not world.backend.released
    while world.host.has_work:
        world.loop.step()
    assert world.ask("sleep").error is None


def test_a_request_that_cannot_wake_it_ends_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(releases=True)
    world.ask("sleep")

    def fail() -> None:
        raise OutOfMemory("others have it")

    with monkeypatch.context() as patch:
        patch.setattr(world.backend, "restore_memory", fail)
        frame = world.host.handle(submit("a"))
        assert isinstance(frame, Frame)
        (delta,) = frame.deltas
        assert (delta.id, delta.finish, delta.error) == ("a", FinishReason.ERROR, "others have it")
        assert delta.code == OutOfMemory.code
        assert world.ask("wake").error == "others have it"
    assert world.ask("wake").error is None
    world.generate("b")
