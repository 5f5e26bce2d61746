"""What a client holds of its request while a replica works on it."""

from __future__ import annotations

import asyncio

from penstock.errors import PenstockError, by_code
from penstock.flow import Cancel, Chunk, Delta, Submit
from penstock.pipeline import Flight


class Ticket:
    """One client's request at a replica: a flight per prompt, and the chunks nobody has taken yet.

    They are bounded by what the request may produce; a client that does not read only finds more of them at once.
    """

    def __init__(self, flights: list[Flight]) -> None:
        self.flights = flights
        self.chunks: list[tuple[int, Chunk]] = []  # (index of the flight, its chunk)
        self._index = {submit.id: index for index, flight in enumerate(flights) for submit in flight.submits}
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
        flight = self.flights[index]
        chunk, cancel = flight.push(delta)
        if chunk is not None:
            self.chunks.append((index, chunk))
        if delta.finish is not None:
            self._open -= 1
            if flight.error is not None and self.error is None:
                self.error = by_code(flight.error[1], flight.error[0])
        if chunk is not None or self.done:
            self._news.set()
        return cancel

    async def take(self) -> list[tuple[int, Chunk]]:
        """What has come since; waits for the first. Empty once everything has been taken and the engine is done."""
        while not self.chunks and not self.done:
            self._news.clear()
            await self._news.wait()
        chunks, self.chunks = self.chunks, []
        return chunks

    async def finished(self) -> None:
        """Wait until all is done, or one part has failed and so the whole; chunks are thrown away."""
        while not self.done and self.error is None:
            self.chunks.clear()
            self._news.clear()
            await self._news.wait()

    def submits(self) -> list[Submit]:
        return [submit for flight in self.flights for submit in flight.submits]

    def begun(self) -> bool:
        """Whether the client may have seen a token of it."""
        return any(answer.tokens for flight in self.flights for answer in flight.answers)
