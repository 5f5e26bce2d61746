"""Questions to an engine, and the answers that are waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.errors import PenstockError
from penstock.flow import Query, Reply

CHANGES = ("sleep", "wake")  # what takes an engine some time


class EngineQueries:
    def __init__(self, send: Callable[[Query], None]) -> None:
        self._send = send
        self._count = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._changes: set[int] = set()  # of those: what the engine is at

    @property
    def busy(self) -> bool:
        """Whether the engine should go to sleep or wake, and has not said that it has."""
        return bool(self._changes)

    def send(self, kind: str, **arguments: Any) -> int:
        """Ask without waiting; returns the number of the reply to come."""
        self._count += 1
        self._send(Query(self._count, kind, arguments))
        return self._count

    def ask(self, kind: str, **arguments: Any) -> asyncio.Future[Any]:
        """See `engine.loop` for what an engine knows."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        number = self.send(kind, **arguments)
        self._waiting[number] = answer
        if kind in CHANGES:
            self._changes.add(number)
        return answer

    def fail_all(self, error: PenstockError) -> None:
        """The engine has died or is closed: queries that wait are failed, as no answer will come."""
        waiting, self._waiting = self._waiting, {}
        self._changes.clear()
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(error)

    def resolve(self, reply: Reply) -> None:
        answer = self._waiting.pop(reply.id, None)
        self._changes.discard(reply.id)
        if answer is None or answer.done():
            return
        if reply.error is not None:
            answer.set_exception(PenstockError(reply.error))
        else:
            answer.set_result(reply.value)
