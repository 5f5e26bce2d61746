"""A client's request at a replica: the chunks that its sequences produce, until the client has taken them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from penstock.errors import PenstockError, by_code
from penstock.flow import Cancel, Chunk, Delta, Submit
from penstock.flow.identity import UNNAMED, Source
from penstock.stream.active_request import ActiveRequest, ShortWay
from penstock.stream.choice import complete_chunk

if TYPE_CHECKING:
    from penstock.deployment.protocol import Call, Deployment, ServedModel

Chunks = list[tuple[int, Chunk]]  # with the index of the active request that each belongs to
Sink = Callable[[Chunks], bool]  # False: it has taken nothing


class TokenLane(Protocol):
    """The short way of single tokens, for sequences whose tokens are text and nothing else."""

    def push(self, token: int) -> bool:
        """Take a token; False, with nothing changed, if it has to go the long way (`Ticket.push`)."""

    def flush(self, now: float) -> None:
        """Write what was pushed."""


class Recovery(Protocol):
    """What becomes of a request whose deployment failed before the client saw any output (`gateway.fallback`)."""

    async def recover(self, ticket: Ticket) -> bool:
        """Have another deployment work on it; False: its error stays."""

    def close(self) -> None:
        """There is output, or the client has disconnected."""


class TicketAccount(Protocol):
    """The account of a request (`gateway.accounting`)."""

    first_output: float | None  # when the first output of a stream was there

    @property
    def durable(self) -> bool:
        """Whether the end of the answer waits for a record of its usage."""

    async def settle(self, ticket: Ticket) -> None:
        """Returns once the usage is recorded: only then may the client get the end of its answer."""

    def measure(self, ticket: Ticket) -> object:
        """Sets the cost in the answer, before that is written."""

    def leave(self, ticket: Ticket) -> None:
        """The client has its answer or has gone."""

    def headers(self) -> dict[str, str]:
        """Of the response."""


class OpenSequence:
    """A sequence that has not ended, and where its tokens go."""

    __slots__ = ("id", "index", "lane", "number", "pending_tokens", "retried", "submit", "ticket")

    def __init__(self, submit: Submit, ticket: Ticket, index: int) -> None:
        self.id = submit.id
        self.number = submit.number
        self.submit = submit
        self.pending_tokens = len(submit.tokens)  # of the prompt, until the first output; then 0
        self.ticket = ticket
        self.index = index  # of its active request
        self.lane: TokenLane | None = None
        self.retried = False  # it was given to a second engine, after the first had died


class Ticket:
    """One client's request: an active request per prompt, and the chunks that have not been taken yet.

    They are bounded by what the request may produce; a client that does not read only finds more of them at once.

    A task waits for chunks (`take`). While it waits, a sink may take them in its place: the replica calls `flush` once
    it has delivered a frame, and the task is woken only for chunks that the sink refuses, an error or the end. Waking a
    task for each token would cost more than everything else that happens to it.
    """

    __slots__ = (
        "_changed", "account", "active_requests", "call", "chunks", "deployment", "error", "key", "lanes_open", "left",
        "model", "num_open", "on_end", "recovery", "review", "sequences", "settled", "sink", "taken",
    )  # fmt: skip

    def __init__(
        self, active_requests: list[ActiveRequest], deployment: Deployment | None = None, cached_tokens: int = 0
    ) -> None:
        """`cached_tokens` of the first prompt need not be computed, as far as is known."""
        self.deployment = deployment  # that works on it; another one if the first has died
        self.model: ServedModel | None = None  # whose deployment that is
        self.call: Call | None = None  # that was submitted
        self.settled = False  # the router has learned what became of it
        self.account: TicketAccount | None = None  # what it may use and has used (`gateway.accounting`)
        self.on_end: Callable[[], None] | None = None  # called once the client has gone and all sequences have ended
        self.recovery: Recovery | None = None  # until there is output; None: an error is the answer
        self.review: Callable[[Ticket], Awaitable[None]] | None = None  # looks at the whole answer before it is shown
        self.key = ""  # the public id of the API key
        self.active_requests = active_requests
        self.chunks: Chunks = []
        self.sink: Sink | None = None
        self.lanes_open = False  # lanes may take tokens: there is a sink, and no chunk has to go first
        self.sequences = {
            submit.id: OpenSequence(submit, self, index)
            for index, active in enumerate(active_requests)
            for submit in active.submits
        }
        for sequence in self.sequences.values():
            if sequence.index == 0:
                sequence.pending_tokens = max(sequence.pending_tokens - cached_tokens, 1)
        self.error: PenstockError | None = None  # of the first sequence that failed
        self.left = False  # see `leave`
        self.taken = False  # the client may have seen output: it cannot start again
        self.num_open = len(self.sequences)
        self._changed = asyncio.Event()

    @property
    def done(self) -> bool:
        return self.num_open == 0

    @property
    def source(self) -> Source:
        """Model and replica that work on it, for usage and metrics: an adapter counts under its own name."""
        if self.deployment is None:
            return UNNAMED
        source, card = self.deployment.source, None if self.model is None else self.model.card
        return source if card is None or card.parent is None else Source(card.name, source.replica)

    def push(self, delta: Delta) -> Cancel | None:
        """Take a Delta of one of its sequences; returns the message that the engine must get in turn."""
        index = self.sequences[delta.id].index
        active = self.active_requests[index]
        chunk, cancel = active.push(delta)
        if chunk is not None:
            self.chunks.append((index, chunk))
            self.lanes_open = False
        if delta.finish is not None:
            self.num_open -= 1
            if active.error is not None and self.error is None:
                self.error = by_code(active.error[1], active.error[0])
        if self.sink is None and (chunk is not None or self.done):
            self._changed.set()
        if self.left:
            self.leave()
        return cancel

    def add(self, index: int, chunk: Chunk) -> None:
        """Take a chunk of a request whose output another server has parsed; its last one has `finish`."""
        self.chunks.append((index, chunk))
        self.lanes_open = False
        if chunk.finish is not None:
            self.num_open -= 1
        self.flush()

    def fail(self, error: PenstockError) -> None:
        """End it in an error; its deployment may still work on it."""
        self.error = self.error or error
        self.flush()

    def end(self, error: PenstockError) -> None:
        """End it in an error, and its work."""
        if self.error is None and not self.done:
            self.fail(error)
            if self.deployment is not None:
                self.deployment.cancel(self)

    @property
    def has_output(self) -> bool:
        return self.taken or any(choice.output_tokens for active in self.active_requests for choice in active.choices)

    def detach(self) -> Ticket:
        """Move what is left of a failed attempt to a ticket without a client, which is returned."""
        abandoned = Ticket([], self.deployment)
        abandoned.active_requests, abandoned.sequences = self.active_requests, self.sequences
        abandoned.num_open = self.num_open
        for sequence in abandoned.sequences.values():
            sequence.ticket, sequence.lane = abandoned, None
        self.sequences, self.num_open, self.chunks, self.error = {}, 0, [], None
        return abandoned

    def adopt(self, fresh: Ticket) -> None:
        """Go on with another attempt, whose client is this ticket's."""
        self.active_requests, self.sequences, self.num_open = fresh.active_requests, fresh.sequences, fresh.num_open
        self.chunks, self.error, self.deployment = fresh.chunks, fresh.error, fresh.deployment
        self.model, self.call, self.settled = fresh.model, fresh.call, False
        for sequence in self.sequences.values():
            sequence.ticket = self

    def flush(self) -> None:
        """Give the chunks to the sink; wake the task if some are left, or if it has to end the answer."""
        if self.sink is not None and self.chunks and self.error is None and self.sink(self.chunks):
            self.chunks = []
            self.lanes_open = True
        if self.chunks or self.done or self.error is not None:
            self.sink = None
            self.lanes_open = False
            self._changed.set()

    async def take(self, sink: Sink | None = None) -> Chunks:
        """The chunks since the last call; waits for the first that the sink refuses. Empty once everything has been
        taken and the engine is done. An answer that is reviewed comes whole, after its review."""
        if self.review is not None:
            return await self._take_reviewed()
        while True:
            while not self.chunks and not self.done and (self.error is None or self.taken):
                await self._wait(sink)
            if not await self._recovers():
                break
        chunks, self.chunks = self.chunks, []
        if chunks and not self.taken:
            self.taken = True
            self._close_recovery()
        return chunks

    async def finished(self) -> None:
        """Wait until all is done or one part has failed. Chunks are dropped, choices keep the text."""
        while True:
            for active in self.active_requests:
                for place, submit in enumerate(active.submits):
                    self.sequences[submit.id].lane = _Collect(active.short_way(place))
            while not self.done and self.error is None:
                self.chunks.clear()
                await self._wait(_drop)
            if not await self._recovers():
                break
        self._close_recovery()
        if self.review is not None and self.error is None:
            await self.review(self)

    async def _take_reviewed(self) -> Chunks:
        if self.taken:
            return []
        await self.finished()
        if self.error is not None:
            return []
        self.taken = True
        return [
            (place, complete_chunk(choice, active.prompt_logprobs if choice.index == 0 else None))
            for place, active in enumerate(self.active_requests)
            for choice in active.choices
        ]

    async def _recovers(self) -> bool:
        """Whether it has failed, but another attempt is under way."""
        failed = self.error is not None and not self.taken
        return failed and self.recovery is not None and await self.recovery.recover(self)

    def _close_recovery(self) -> None:
        if self.recovery is not None:
            self.recovery.close()
            self.recovery = None

    async def _wait(self, sink: Sink | None) -> None:
        self._changed.clear()
        self.sink = sink
        self.lanes_open = sink is not None
        try:
            await self._changed.wait()
        finally:
            self.sink = None
            self.lanes_open = False

    def leave(self) -> None:
        """The client has its answer, or has gone. Once all sequences have ended, they and the ticket no longer refer to
        each other: the garbage collector need not find them."""
        self.left = True
        if self.done:
            self.sequences.clear()
            if self.on_end is not None:
                on_end, self.on_end = self.on_end, None
                on_end()

    def submits(self) -> list[Submit]:
        return [submit for active in self.active_requests for submit in active.submits]

    def restart(self, name: str) -> None:
        """Forget the output of a sequence that is computed again. Not once the ticket is `taken`."""
        sequence = self.sequences[name]
        active = self.active_requests[sequence.index]
        choice = active.restart(name)
        sequence.pending_tokens = len(sequence.submit.tokens)
        self.chunks = [one for one in self.chunks if (one[0], one[1].choice) != (sequence.index, choice.index)]
        if sequence.lane is not None:
            sequence.lane = _Collect(active.short_way(choice.index))


class _Collect:
    """Tokens of an answer that is written when it is complete."""

    def __init__(self, way: ShortWay) -> None:
        self._push_token = way.push_token

    def push(self, token: int) -> bool:
        return self._push_token(token) is not None

    def flush(self, now: float) -> None: ...


def _drop(chunks: Chunks) -> bool:
    return True
