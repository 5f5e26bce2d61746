"""The engine in the caller's process, interrupted by Ctrl-C wherever it may be."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from counting import Counting
from penstock.cache import CacheManager
from penstock.engine.local import LocalEngine
from penstock.engine.loop import EngineLoop
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
        self.engine = LocalEngine(EngineLoop(scheduler, Counting()))
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


def traced(client: Client, strike: Callable[[int], None]) -> int:
    """Has the client work, and calls `strike` with its number at every line that the scheduler and the cache come by;
    gives how many lines there were."""
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if "/penstock/schedule/" not in frame.f_code.co_filename and "/penstock/cache/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            lines += 1
            strike(lines)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        client.work()
    finally:
        sys.settrace(before)
    return lines


def test_an_interrupt_at_any_line_loses_nothing() -> None:
    calm = Client()
    lines = traced(calm, lambda number: None)
    assert calm.engine.loop.scheduler.stats()["preemptions"] > 0
    assert lines > 1000
    for chosen in range(1, lines, 23):
        client = Client()
        with pytest.raises(KeyboardInterrupt):
            traced(client, lambda number, at=chosen: signal.raise_signal(signal.SIGINT) if number == at else None)
        client.engine.loop.scheduler.check_integrity()
        client.work()
        client.engine.loop.scheduler.check_integrity()
        assert (client.tokens, client.ends) == (calm.tokens, calm.ends)
        assert not client.engine.loop.has_work
