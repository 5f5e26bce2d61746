"""Flights carried to an engine and back by whoever waits for them: the library's plain loop, where the server has an
event loop and `route`."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.bar import bar
from penstock.errors import EngineDied, PenstockError, by_code
from penstock.flow import Chunk, Delta, Engine, Frame, Query, Reply
from penstock.interrupts import held
from penstock.pipeline import Flight


@dataclass(eq=False, slots=True)
class Landing:
    """A flight, and where its news go: each chunk, or itself once it is done."""

    flight: Flight
    chunks: deque[Chunk] | None = None
    landed: deque[Landing] | None = None


class Driver:
    """Carries messages between flights and the engine. One thread at a time turns the engine, for all of them: if it is
    interrupted, its own flights are abandoned and the others miss nothing."""

    def __init__(self, engine: Engine, max_open: int) -> None:
        """`max_open`: sequences that batches hand to the engine at once, so that it never has to refuse one."""
        self.engine = engine
        self.max_open = max_open
        self.lock = threading.Lock()
        self.left: deque[Landing] = deque()  # nobody waits for these any more
        self.landings: dict[str, Landing] = {}  # by sequence id
        self.news: list[Frame | Reply] = []  # from the engine, to be delivered
        self.replies: dict[int, Reply] = {}
        self.numbers = itertools.count()

    def run(self, flights: list[Flight], doing: str, progress: bool | None) -> None:
        """Fly them all until they have landed, with a progress bar that says what they are `doing`."""
        waiting = deque(flights)
        landed: deque[Landing] = deque()
        under_way: set[Landing] = set()
        with bar(doing, len(flights), wanted=progress) as advance:
            try:
                while waiting or under_way:
                    while waiting and (not under_way or self._has_room(waiting[0])):
                        under_way.add(landing := Landing(waiting.popleft(), landed=landed))
                        self.launch(landing)
                    self.wait(lambda: bool(landed))
                    while landed:
                        landing = landed.popleft()
                        self.abandon(landing)
                        under_way.remove(landing)
                        advance()
            finally:
                for landing in under_way:
                    self.abandon(landing)
        for message, code in (flight.error for flight in flights if flight.error):
            if code == EngineDied.code:
                raise EngineDied(message)

    def chunks(self, flight: Flight) -> Iterator[Chunk]:
        """Fly one, and give what it brings as it comes; raises what it failed of. Leaving early cancels it."""
        chunks: deque[Chunk] = deque()
        landing = Landing(flight, chunks=chunks)
        try:
            self.launch(landing)
            while not flight.done or chunks:
                self.wait(lambda: bool(chunks) or flight.done)
                while chunks:
                    yield chunks.popleft()
        finally:
            self.abandon(landing)
        if flight.error is not None:
            raise by_code(flight.error[1], flight.error[0])

    def ask(self, kind: str) -> Any:
        """The engine's answer about itself; see `engine.loop` for what it knows."""
        number = next(self.numbers)
        with self._turn():
            self.engine.query(Query(number, kind))
        self.wait(lambda: number in self.replies)
        reply = self.replies.pop(number)
        if reply.error is not None:
            raise PenstockError(reply.error)
        return reply.value

    def close(self) -> None:
        """End the engine. Whoever waits for an answer hears of it."""
        with self._turn():
            self.engine.close()

    def launch(self, landing: Landing) -> None:
        """Hand its sequences to the engine. Whoever calls this must `abandon` it, too, also if this is interrupted."""
        with self._turn():
            for submit in landing.flight.submits:
                self.landings[submit.id] = landing
                self.engine.submit(submit)

    def abandon(self, landing: Landing) -> None:
        """Nobody waits for it any more. The engine is told if it still works on it, by whoever has the lock at the
        time: that can be this very thread, if the garbage collector came upon a stream that was left."""
        with held():
            self.left.append(landing)
            self._let_go()

    def wait(self, arrived: Callable[[], bool]) -> None:
        """Turn the engine until this is so."""
        while not arrived():
            with self._turn():
                if not arrived():  # another thread may have brought it meanwhile
                    self._pump()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """To be the one who speaks with the engine."""
        try:
            with self.lock:
                self._drop()
                yield
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Of what was left, unless somebody has the lock: they will, when they have it no more."""
        with held():
            while self.left and self.lock.acquire(blocking=False):
                try:
                    self._drop()
                finally:
                    self.lock.release()

    def _drop(self) -> None:
        with held():
            while self.left:
                landing = self.left.popleft()
                for cancel in landing.flight.cancels():
                    self.engine.cancel(cancel)
                for submit in landing.flight.submits:
                    self.landings.pop(submit.id, None)

    def _has_room(self, flight: Flight) -> bool:
        return len(self.landings) + len(flight.submits) <= self.max_open

    def _pump(self) -> None:
        """Wait for news from the engine, and deliver them."""
        if not self.news:
            self.news = self.engine.receive()
        if not self.news:
            raise EngineDied("the engine has nothing to do, but a request is still open")
        while self.news:
            with held():
                message = self.news.pop(0)
                if isinstance(message, Reply):
                    self.replies[message.id] = message
                else:
                    for delta in message.deltas:
                        if landing := self.landings.get(delta.id):
                            self._deliver(landing, delta)

    def _deliver(self, landing: Landing, delta: Delta) -> None:
        chunk, cancel = landing.flight.push(delta)
        if cancel is not None:
            self.engine.cancel(cancel)
        if chunk is not None and landing.chunks is not None:
            landing.chunks.append(chunk)
        if landing.flight.done and landing.landed is not None:
            landing.landed.append(landing)
