"""The engine in the caller's own process. Nothing runs by itself: `receive` turns the loop.

An interrupt takes effect between two turns: nothing is lost by it, and whoever catches it may go on. One that is
insisted on during a turn ends the sequences that run (see `EngineLoop.step`), at best.
"""

from __future__ import annotations

import gc

from penstock.engine.loop import EngineLoop
from penstock.errors import EngineDied
from penstock.flow import Cancel, Frame, Query, Reply, Submit
from penstock.system.signals import held


class LocalEngine:
    def __init__(self, loop: EngineLoop) -> None:
        self._loop: EngineLoop | None = loop
        self.news: list[Frame | Reply] = []  # not yet handed out

    @property
    def loop(self) -> EngineLoop:
        if self._loop is None:
            raise EngineDied("the engine was closed")
        return self._loop

    def submit(self, message: Submit) -> None:
        with held():
            self.loop.handle(message)

    def cancel(self, message: Cancel) -> None:
        if self._loop is not None:
            with held():
                self._loop.handle(message)

    def query(self, message: Query) -> None:
        reply = self.loop.handle(message)
        assert reply is not None
        self.news.append(reply)

    def receive(self, timeout_s: float | None = None) -> list[Frame | Reply]:
        """Turns the loop until there is news or no work left: `timeout_s` cannot cut a step short."""
        while not self.news:
            with held():
                if frame := self.loop.step():
                    self.news.append(frame)
            if not self.loop.has_work:
                break
        news, self.news = self.news, []
        return news

    def close(self) -> None:
        """Let go of the loop, and so of the model and its memory. Whoever still waits for an answer is told."""
        import torch  # is there, since the loop was

        self._loop = None
        self.news.clear()
        gc.collect()  # what belongs to a loop knows each other
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()
