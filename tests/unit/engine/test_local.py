"""The engine in the caller's process, interrupted by Ctrl-C wherever it may be."""

from __future__ import annotations

import weakref

import pytest

from helpers.counting_backend import CountingBackend
from helpers.ctrl_c import interrupt_at_line
from penstock.cache import CacheManager
from penstock.engine.local import LocalEngine
from penstock.engine.loop import EngineLoop
from penstock.errors import EngineDied
from penstock.flow import Cancel, FinishReason, Frame, SamplingParams, Submit
from penstock.schedule import Scheduler
from penstock.store.spec import CacheGroup


class Client:
    """Submits a few sequences, cancels one, and reads to the end. When interrupted it goes on where it was."""

    def __init__(self) -> None:
        """Blocks are few, so that sequences are preempted."""
        cache = CacheManager((CacheGroup(0, (0,)),), (12,), 4, True)
        scheduler = Scheduler(
            cache, step_tokens=16, max_sequences=4, max_waiting=100, policy="fcfs", lookahead=1, context=32
        )
        self.engine = LocalEngine(EngineLoop(scheduler, CountingBackend()))
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, FinishReason] = {}

    def work(self) -> None:
        for id in map(str, range(len(self.tokens), 6)):
            self.tokens[id] = []
            prompt = [1, 2, 3, 4, 5 + int(id) % 2, 6]
            self.engine.submit(Submit(id=id, tokens=prompt, params=SamplingParams(), seed=0, max_output=12))
        self.engine.cancel(Cancel("5"))
        while len(self.ends) < len(self.tokens):
            for frame in self.engine.receive():
                assert isinstance(frame, Frame)
                for delta in frame.deltas:
                    assert delta.id not in self.ends
                    self.tokens[delta.id] += delta.tokens
                    if delta.finish is not None:
                        self.ends[delta.id] = delta.finish


def test_an_interrupt_at_any_line_loses_nothing() -> None:
    calm = Client()
    calm.work()
    assert calm.engine.loop.scheduler.stats()["preemptions"] > 0
    client, at = Client(), 1
    while interrupt_at_line(client.work, ("/penstock/schedule/", "/penstock/cache/"), at):
        client.engine.loop.scheduler.check_integrity()
        client.work()
        client.engine.loop.scheduler.check_integrity()
        assert (client.tokens, client.ends) == (calm.tokens, calm.ends)
        assert not client.engine.loop.has_work
        client, at = Client(), at + 23
    assert at > 1000


def test_closing_drops_the_loop_and_then_releases_what_is_left() -> None:
    calls: list[bool] = []
    loop = Client().engine.loop
    engine = LocalEngine(loop, lambda: calls.append(gone() is None))
    gone = weakref.ref(loop)
    del loop
    engine.close()
    assert calls == [True]
    with pytest.raises(EngineDied):
        _ = engine.loop
