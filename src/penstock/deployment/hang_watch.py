"""Notices an engine that has work but makes no progress."""

from __future__ import annotations

from typing import Any

from penstock.flow import Reply

LOOKS = 4  # in the time that an engine may be silent


class HangWatch:
    """Counts looks, not seconds: a machine that was suspended is no hang."""

    def __init__(self) -> None:
        self.signs = 0  # of life: frames of steps, and answers to a ping that show progress
        self.ping: int | None = None  # the query that asks for one, until it is answered
        self._steps = -1  # the engine's count of steps at the last answer
        self._before: tuple[object, int] | None = None  # the engine and its signs at the last look
        self._silent = 0  # looks in a row without a sign

    def look(self, engine: object, *, busy: bool) -> bool:
        """Call LOOKS times in the time that a busy engine may be silent. Whether it has been silent since the last
        look; `hangs` says if that was once too often."""
        if self._before is None or self._before[0] is not engine:
            self.ping = None  # another answers no question to the one before
        now = (engine, self.signs)
        self._silent = self._silent + 1 if now == self._before and busy else 0
        self._before = now
        return self._silent > 0

    @property
    def hangs(self) -> bool:
        return self._silent > LOOKS

    def hear(self, reply: Reply) -> None:
        if reply.id == self.ping:
            self.ping = None
            self._judge(reply.value)

    def _judge(self, stats: dict[str, Any] | None) -> None:
        """An engine that answers is well if its steps go on, or if nothing runs: what waits may have to."""
        if stats is not None and (stats["steps"] != self._steps or not stats["running"]):
            self.signs += 1
            self._steps = stats["steps"]
