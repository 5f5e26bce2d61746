"""Requests to an engine and back in a plain loop, for the library; the server has an event loop and `replica`."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.errors import EngineDied, PenstockError, by_code
from penstock.flow import Chunk, Delta, Engine, Frame, Query, Reply
from penstock.stream.active_request import ActiveRequest
from penstock.system.progress_bar import bar
from penstock.system.signals import held


@dataclass(eq=False, slots=True)
class SyncTicket:
    """An active request. Its chunks go to `chunks`, the ticket itself to `finished` once the request is done."""

    active: ActiveRequest
    chunks: deque[Chunk] | None = None
    finished: deque[SyncTicket] | None = None


class Driver:
    """Carries messages between active requests and the engine. One thread at a time turns the engine, for all of them:
    if it is interrupted, its own active requests are abandoned and the others miss nothing."""

    def __init__(self, engine: Engine, max_open: int) -> None:
        """`max_open`: sequences that batches hand to the engine at once, so that it never has to refuse one."""
        self.engine = engine
        self.max_open = max_open
        self.lock = threading.Lock()
        self.abandoned: deque[SyncTicket] = deque()  # to be cancelled
        self.tickets: dict[str, SyncTicket] = {}  # by sequence id
        self.ids: dict[int, str] = {}  # of those sequences, by number
        self.news: list[Frame | Reply] = []  # from the engine, to be delivered
        self.replies: dict[int, Reply] = {}
        self.numbers = itertools.count()

    def run(self, active_requests: list[ActiveRequest], doing: str, progress: bool | None) -> None:
        """Run all of them to their ends, with a progress bar labelled `doing`."""
        waiting = deque(active_requests)
        finished: deque[SyncTicket] = deque()
        under_way: set[SyncTicket] = set()
        with bar(doing, len(active_requests), enabled=progress) as advance:
            try:
                while waiting or under_way:
                    while waiting and (not under_way or self._has_room(waiting[0])):
                        under_way.add(ticket := SyncTicket(waiting.popleft(), finished=finished))
                        self.launch(ticket)
                    self.wait(lambda: bool(finished))
                    while finished:
                        ticket = finished.popleft()
                        self.abandon(ticket)
                        under_way.remove(ticket)
                        advance()
            finally:
                for ticket in under_way:
                    self.abandon(ticket)
        for message, code in (active.error for active in active_requests if active.error):
            if code == EngineDied.code:
                raise EngineDied(message)

    def chunks(self, active: ActiveRequest) -> Iterator[Chunk]:
        """Run one and yield its chunks as they come; raises its error. Leaving early cancels it."""
        chunks: deque[Chunk] = deque()
        ticket = SyncTicket(active, chunks=chunks)
        try:
            self.launch(ticket)
            while not active.done or chunks:
                self.wait(lambda: bool(chunks) or active.done)
                while chunks:
                    yield chunks.popleft()
        finally:
            self.abandon(ticket)
        if active.error is not None:
            raise by_code(active.error[1], active.error[0])

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
        """End the engine. Threads that wait for an answer get EngineDied."""
        with self._turn():
            self.engine.close()

    def launch(self, ticket: SyncTicket) -> None:
        """Hand its sequences to the engine. The caller must `abandon` it afterwards, also if this is interrupted."""
        with self._turn():
            for submit in ticket.active.submits:
                self.tickets[submit.id] = ticket
                self.ids[submit.number] = submit.id
                self.engine.submit(submit)

    def abandon(self, ticket: SyncTicket) -> None:
        """Drop a ticket and cancel what still runs of it. The thread that holds the lock does that when it releases it;
        it may be this very thread, if the garbage collector found a stream that was left."""
        with held():
            self.abandoned.append(ticket)
            self._let_go()

    def wait(self, arrived: Callable[[], bool]) -> None:
        """Turn the engine until `arrived` is true."""
        while not arrived():
            with self._turn():
                if not arrived():  # another thread may have brought it meanwhile
                    self._pump()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Exclusive use of the engine."""
        try:
            with self.lock:
                self._drop()
                yield
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Cancel abandoned tickets, unless another thread holds the lock: it will, when it releases it."""
        with held():
            while self.abandoned and self.lock.acquire(blocking=False):
                try:
                    self._drop()
                finally:
                    self.lock.release()

    def _drop(self) -> None:
        with held():
            while self.abandoned:
                ticket = self.abandoned.popleft()
                for cancel in ticket.active.cancels():
                    self.engine.cancel(cancel)
                for submit in ticket.active.submits:
                    self.tickets.pop(submit.id, None)
                    self.ids.pop(submit.number, None)

    def _has_room(self, active: ActiveRequest) -> bool:
        return len(self.tickets) + len(active.submits) <= self.max_open

    def _pump(self) -> None:
        """Wait for messages of the engine, and deliver them."""
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
                    for number, token in zip(*message.pairs(), strict=True):
                        if (name := self.ids.get(number)) is not None:
                            self._deliver(self.tickets[name], Delta(id=name, tokens=[token]))
                    for delta in message.deltas:
                        if ticket := self.tickets.get(delta.id):
                            self._deliver(ticket, delta)

    def _deliver(self, ticket: SyncTicket, delta: Delta) -> None:
        chunk, cancel = ticket.active.push(delta)
        if cancel is not None:
            self.engine.cancel(cancel)
        if chunk is not None and ticket.chunks is not None:
            ticket.chunks.append(chunk)
        if ticket.active.done and ticket.finished is not None:
            ticket.finished.append(ticket)
