"""The engine in the caller's own process. Nothing runs by itself: `receive` turns the loop.

An interrupt takes effect between two turns: nothing is lost by it, and whoever catches it may go on. One that is
insisted on during a turn ends the sequences that run (see `EngineLoop.step`), at best.
"""

from __future__ import annotations

from penstock.engine.loop import EngineLoop
from penstock.flow import Cancel, Frame, Query, Reply, Submit
from penstock.interrupts import held


class LocalEngine:
    def __init__(self, loop: EngineLoop) -> None:
        self.loop = loop
        self.news: list[Frame | Reply] = []  # not yet handed out

    def submit(self, message: Submit) -> None:
        with held():
            self.loop.handle(message)

    def cancel(self, message: Cancel) -> None:
        with held():
            self.loop.handle(message)

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
        """Nothing to end: the loop holds no process and no thread."""
