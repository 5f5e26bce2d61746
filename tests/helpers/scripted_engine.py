"""An engine process that does what a test tells it, and requests for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from penstock.errors import EngineDied, PenstockError
from penstock.flow import Cancel, Delta, FinishReason, Frame, Query, Reply, SamplingParams, Submit
from penstock.stream.active_request import ActiveRequest
from penstock.stream.choice import ChoiceStream


class ScriptedEngine:
    """Does what the test tells it."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] | None = {"kv_tokens": 1}
        self.failure: PenstockError | None = None
        self.dead: str | None = None
        self.submitted: list[str] = []
        self.open: list[str] = []
        self.cancelled: list[str] = []
        self.news: list[Frame | Reply] = []
        self.ends = os.pipe()
        os.set_blocking(self.ends[0], False)
        self.closed = False

    @property
    def handles(self) -> tuple[int, ...]:
        return (self.ends[0],)

    def submit(self, message: Submit) -> None:
        if self.dead is not None:
            raise EngineDied(self.dead)
        self.submitted.append(message.id)
        self.open.append(message.id)

    def cancel(self, message: Cancel) -> None:
        self.cancelled.append(message.id)

    def query(self, message: Query) -> None: ...

    def receive(self, timeout_s: float | None = None) -> list[Frame | Reply]:
        if not self.closed:  # else the number may be another file's by now
            with suppress(BlockingIOError):
                os.read(self.ends[0], 1 << 10)  # the signal is seen once, as a socket's is
        news, self.news = self.news, []
        if self.dead is not None and self.open:
            ends = [
                Delta(id=name, finish=FinishReason.ERROR, error=self.dead, code=EngineDied.code) for name in self.open
            ]
            self.open = []
            news.append(Frame(ends))
        return news

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self.ends[0])
            os.close(self.ends[1])

    kill = close

    def end(self, why: str) -> None:
        self.dead = why

    # --- what happens to it

    def say(self, *deltas: Delta) -> None:
        self.news.append(Frame(list(deltas)))
        os.write(self.ends[1], b"!")

    def die(self) -> None:
        self.dead = "the engine process died (signal 9)"
        os.write(self.ends[1], b"!")


class NoText:
    fixed_texts = None
    holds_text = False

    def push(self, token: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


def active(name: str, choices: int = 1) -> ActiveRequest:
    params = SamplingParams(n=choices)
    submits = [Submit(f"{name}/{choice}", [1], params, 0, 9, choice) for choice in range(choices)]
    return ActiveRequest(name, submits, lambda choice: ChoiceStream(choice, params, NoText()))


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.001)
