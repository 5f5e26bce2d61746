"""The engine in the caller's own process. It has no thread: `receive` runs the loop.

Ctrl-C takes effect between two steps: nothing is lost, and a caller that catches it may go on. A second one during a
step ends the running sequences (see `EngineLoop.step`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable

from penstock.engine.loop import EngineLoop
from penstock.errors import EngineDied
from penstock.flow import Cancel, Frame, Query, Reply, Submit
from penstock.system.signals import held


class LocalEngine:
    def __init__(self, loop: EngineLoop, release: Callable[[], None] | None = None) -> None:
        """`release` frees the engine's process-wide caches, once the loop is gone."""
        self._release = release
        self._loop: EngineLoop | None = loop
        self._messages: list[Frame | Reply] = []  # not received yet

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
        self._messages.append(reply)

    def receive(self, timeout_s: float | None = None) -> list[Frame | Reply]:
        """Runs the loop until there is a message or no work is left: `timeout_s` cannot cut a step short."""
        while not self._messages:
            with held():
                if frame := self.loop.step():
                    self._messages.append(frame)
            if not self.loop.has_work:
                break
        messages, self._messages = self._messages, []
        return messages

    def close(self) -> None:
        """Release the loop, and with it the model and its memory. Calls that still wait raise EngineDied."""
        self._loop = None
        self._messages.clear()
        gc.collect()  # the parts of a loop refer to each other
        if self._release is not None:
            self._release()
