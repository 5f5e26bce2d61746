"""What a client holds of its request while a replica works on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.errors import PenstockError, by_code
from penstock.flow import Cancel, Chunk, Delta, Submit
from penstock.pipeline import ActiveRequest

Chunks = list[tuple[int, Chunk]]  # with the index of the active request that each belongs to
Sink = Callable[[Chunks], bool]  # False: it has taken nothing


class Ticket:
    """One client's request at a replica: a active request per prompt, and the chunks nobody has taken yet.

    They are bounded by what the request may produce; a client that does not read only finds more of them at once.

    Chunks are waited for by a task (`take`). While it waits, a sink may take them in its place: the replica calls
    `flush` once it has delivered what the engine said, and the task is woken only for what the sink leaves, an error or
    the end. That is how most tokens go: a task woken for each would cost more than all else that happens to a token.
    """

    def __init__(self, active_requests: list[ActiveRequest]) -> None:
        self.active_requests = active_requests
        self.chunks: Chunks = []
        self.sink: Sink | None = None
        self._index = {submit.id: index for index, active in enumerate(active_requests) for submit in active.submits}
        self.error: PenstockError | None = None  # of the first sequence that failed
        self.left = False  # the client has gone
        self._open = len(self._index)
        self._news = asyncio.Event()

    @property
    def done(self) -> bool:
        return self._open == 0

    def push(self, delta: Delta) -> Cancel | None:
        """Take news of one of its sequences; gives what the engine is to be told then."""
        index = self._index[delta.id]
        active = self.active_requests[index]
        chunk, cancel = active.push(delta)
        if chunk is not None:
            self.chunks.append((index, chunk))
        if delta.finish is not None:
            self._open -= 1
            if active.error is not None and self.error is None:
                self.error = by_code(active.error[1], active.error[0])
        if self.sink is None and (chunk is not None or self.done):
            self._news.set()
        return cancel

    def flush(self) -> None:
        """Give the sink what has come; wake the task that takes what it leaves, or that has to end the answer."""
        if self.sink is not None and self.chunks and self.error is None and self.sink(self.chunks):
            self.chunks = []
        if self.chunks or self.done or self.error is not None:
            self.sink = None
            self._news.set()

    async def take(self, sink: Sink | None = None) -> Chunks:
        """What has come since; waits for the first that the sink does not take. Empty once everything has been taken
        and the engine is done."""
        while not self.chunks and not self.done:
            await self._wait(sink)
        chunks, self.chunks = self.chunks, []
        return chunks

    async def finished(self) -> None:
        """Wait until all is done, or one part has failed and so the whole; chunks are thrown away."""
        while not self.done and self.error is None:
            self.chunks.clear()
            await self._wait(_throw_away)

    async def _wait(self, sink: Sink | None) -> None:
        self._news.clear()
        self.sink = sink
        try:
            await self._news.wait()
        finally:
            self.sink = None

    def submits(self) -> list[Submit]:
        return [submit for active in self.active_requests for submit in active.submits]

    def begun(self) -> bool:
        """Whether the client may have seen a token of it."""
        return any(answer.tokens for active in self.active_requests for answer in active.answers)


def _throw_away(chunks: Chunks) -> bool:
    return True
