"""What every link to an engine in another process has in common: what is open at it, and the end of that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from penstock import errors
from penstock.errors import EngineDied
from penstock.flow import Cancel, Delta, Failure, FinishReason, Frame, Query, Ready, Reply, Submit
from penstock.flow.messages import FromEngine, StartPhase, ToEngine


class RemoteEngine(ABC):
    """Implements flow.WatchedEngine but for its handles and its end. Every open sequence gets a terminal Delta, and
    every open query a Reply, also when the engine dies."""

    def __init__(self, on_phase: Callable[[str], None] | None = None) -> None:
        """`on_phase` is called with each phase of its start."""
        self._on_phase = on_phase
        self.open: set[str] = set()  # ids of sequences without a terminal Delta so far
        self.queries: set[int] = set()  # ids of those without a Reply so far
        self.facts: dict[str, Any] | None = None
        self.failure: errors.PenstockError | None = None
        self.dead: str | None = None

    def submit(self, message: Submit) -> None:
        self._check_alive()
        self.open.add(message.id)
        self._send(message)

    def cancel(self, message: Cancel) -> None:
        self._send(message)

    def query(self, message: Query) -> None:
        self._check_alive()
        self.queries.add(message.id)
        self._send(message)

    def receive(self, timeout_s: float | None = None) -> list[Frame | Reply]:
        if timeout_s is None and not self.open and not self.queries:
            timeout_s = 0.0
        messages = self.read_messages(timeout_s)
        if self.dead is not None:
            messages += self._terminal_messages(self.dead)
        return messages

    def read_messages(self, timeout_s: float | None) -> list[Frame | Reply]:
        messages: list[Frame | Reply] = []
        for message in self._receive(timeout_s):
            match message:
                case Frame():
                    self.open.difference_update(delta.id for delta in message.deltas if delta.finish is not None)
                    messages.append(message)
                case Reply():
                    self.queries.discard(message.id)
                    messages.append(message)
                case StartPhase():
                    if self._on_phase is not None:
                        self._on_phase(message.phase)
                case Ready():
                    self.facts = message.facts
                case Failure():
                    self.failure = errors.by_code(message.code, message.message, message.param)
        return messages

    @abstractmethod
    def _send(self, message: ToEngine) -> None:
        """Does nothing if the engine has died; `receive` reports that."""

    @abstractmethod
    def _receive(self, timeout_s: float | None) -> Sequence[FromEngine]:
        """Sets `dead` once the engine is gone; nothing comes of it then."""

    def _check_alive(self) -> None:
        if self.dead is not None:
            raise EngineDied(f"{self.dead}; start a new one")

    def _terminal_messages(self, why: str) -> list[Frame | Reply]:
        """For an engine that has died, once."""
        code = EngineDied.code
        deltas = [Delta(id=name, finish=FinishReason.ERROR, error=why, code=code) for name in sorted(self.open)]
        replies = [Reply(number, error=why) for number in sorted(self.queries)]
        self.open.clear()
        self.queries.clear()
        return [*([Frame(deltas)] if deltas else []), *replies]
