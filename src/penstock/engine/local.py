"""The engine in the caller's own process. Nothing runs by itself: `receive` turns the loop."""

from __future__ import annotations

from penstock.engine.loop import EngineLoop
from penstock.flow import Cancel, Frame, Query, Reply, Submit


class LocalEngine:
    def __init__(self, loop: EngineLoop) -> None:
        self.loop = loop
        self.replies: list[Reply] = []

    def submit(self, message: Submit) -> None:
        self.loop.handle(message)

    def cancel(self, message: Cancel) -> None:
        self.loop.handle(message)

    def query(self, message: Query) -> None:
        reply = self.loop.handle(message)
        assert reply is not None
        self.replies.append(reply)

    def receive(self, timeout_s: float | None = None) -> list[Frame | Reply]:
        """Turns the loop until there is news or no work left: `timeout_s` cannot cut a step short."""
        if self.replies:
            replies, self.replies = self.replies, []
            return list(replies)
        while True:
            if frame := self.loop.step():
                return [frame]
            if not self.loop.has_work:
                return []

    def close(self) -> None:
        """Nothing to end: the loop holds no process and no thread."""
