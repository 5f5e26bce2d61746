"""A remote OpenAI-compatible server as a deployment, and the model that it serves here.

    flow.Request ─► upstream_body ─► POST, streamed ─► upstream_events ─► upstream_answer ─► Chunk ─► Ticket

Requests of all APIs come here in the same form, so they are translated by it. The answer is always streamed: an
upstream that stalls or breaks off is noticed at once, and a client that leaves closes the connection.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from penstock.deployment.prefix_tracker import PrefixTracker
from penstock.deployment.protocol import Call, Load, ModelCard, State
from penstock.deployment.ticket import Ticket
from penstock.deployment.upstream_answer import AnswerReader
from penstock.deployment.upstream_client import UpstreamClient
from penstock.deployment.upstream_endpoint import Endpoint
from penstock.deployment.upstream_events import AnswerEvent, EventReader, decode_answer
from penstock.deployment.upstream_request import UpstreamRequest
from penstock.deployment.upstream_vocabulary import UpstreamVocabulary
from penstock.errors import ModelNotFound, PenstockError, ShuttingDown, UpstreamFailed, UpstreamTimeout
from penstock.flow import Chunk, Delta, FinishReason
from penstock.flow.identity import Source
from penstock.observe import events
from penstock.observe.events import Emit

logger = logging.getLogger(__name__)

MAX_BODY = 64 << 20  # bytes of an answer that is not streamed
MAX_CONCURRENT = 16  # prompts of one client's request


class Upstream:
    """A Deployment. Belongs to one event loop."""

    prefixes: PrefixTracker | None = None

    def __init__(self, endpoint: Endpoint, card: ModelCard, emit: Emit | None = None) -> None:
        self.endpoint = endpoint
        self.card = card
        self.vocabulary = UpstreamVocabulary()
        self.source = Source(card.name, 0)
        self.state = State.READY
        self._client = UpstreamClient(endpoint)
        self._emit = emit
        self._open: dict[UpstreamRequest, None] = {}

    @property
    def name(self) -> str:
        return f"{self.card.name}/0"

    def load(self) -> Load:
        waiting = [active for active in self._open if not active.first]
        return Load(open=len(self._open), open_tokens=sum(active.estimate for active in waiting))

    def submit(self, call: Call) -> Ticket:
        if self.state is State.CLOSED:
            raise ModelNotFound(f"the model {self.card.name!r} has been removed", param="model")
        ticket = Ticket(call.active_requests, self)
        self._emit_queued(ticket)
        slots = asyncio.Semaphore(MAX_CONCURRENT)
        for index, active in enumerate(call.active_requests):
            assert isinstance(active, UpstreamRequest), "a call that another model has prepared"
            self._open[active] = None
            active.task = asyncio.create_task(self._run(ticket, index, active, slots))
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        ticket.left = True
        for active in ticket.active_requests:
            if isinstance(active, UpstreamRequest) and active.task is not None:
                active.task.cancel()

    def end_all(self, why: str) -> None:
        """Give up on everything that is open: each request ends in an error."""
        for active in list(self._open):
            active.ending = why
            if active.task is not None:
                active.task.cancel()

    async def close(self) -> None:
        self.state = State.CLOSED
        await self._client.close()

    async def _run(self, ticket: Ticket, index: int, active: UpstreamRequest, slots: asyncio.Semaphore) -> None:
        """Exchange one prompt; its sequences end in any case, also after an error."""
        output = _Output(active, ticket, index, self.source, self._emit)
        try:
            async with slots, asyncio.timeout(active.request.params.timeout_s):
                await self._exchange(active, output)
        except asyncio.CancelledError:
            if active.ending is None:
                output.end(FinishReason.CANCELLED)
            else:
                output.end(FinishReason.ERROR, ShuttingDown(active.ending))
        except TimeoutError:  # the request's own limit
            output.end(FinishReason.TIMEOUT)
        except PenstockError as error:
            error.message = f"upstream {self.endpoint.name!r}: {error.message}"
            output.end(FinishReason.ERROR, error)
        except Exception:
            logger.exception("the answer of upstream %r could not be read", self.endpoint.name)
            failure = UpstreamFailed(f"upstream {self.endpoint.name!r}: its answer could not be read")
            output.end(FinishReason.ERROR, failure)
        finally:
            del self._open[active]

    async def _exchange(self, active: UpstreamRequest, output: _Output) -> None:
        """Send it and read the answer. Raises UpstreamTimeout if nothing comes for too long."""
        active.sent = time.monotonic()
        reader = AnswerReader(active.request.params, self.vocabulary)
        limit_s = self.endpoint.first_token_s
        try:
            async with asyncio.timeout(limit_s) as limit, self._client.post(active.route, active.body) as response:
                if active.request.task == "embed":
                    active.read_embedding(await read_body(response.content.iter_any()))
                    output.add(Chunk(0, "", [], finish=FinishReason.END))
                    return
                async for event in _events(response):
                    chunks = list(reader.read(event))
                    if chunks:
                        limit_s = self.endpoint.idle_s
                        limit.reschedule(asyncio.get_running_loop().time() + limit_s)
                    self._check_model(active, reader)
                    shown = output.shown(chunks)
                    if reader.complete or active.filtered:  # the final event needs the counts of `usage`
                        output.hold(shown)
                    else:
                        output.deliver(shown)
                    if active.filtered:
                        break
        except (TimeoutError, UpstreamFailed) as error:
            if not (reader.complete or active.filtered):  # else only `usage` is missing
                if isinstance(error, TimeoutError) and limit.expired():
                    raise UpstreamTimeout(f"no output for {limit_s:g} s") from None
                raise
        if not (reader.complete or active.filtered):
            raise UpstreamFailed("its answer broke off")
        output.complete(reader)

    def _check_model(self, active: UpstreamRequest, reader: AnswerReader) -> None:
        """Another model than the one asked for is served, and the client is told."""
        said = reader.model
        if said is None or active.answered_by is not None:
            return
        active.answered_by = said
        asked, given = (name.lower().rpartition("/")[2] for name in (self.endpoint.model, said))
        if not (given.startswith(asked) or asked.startswith(given)):
            text = f"the upstream {self.endpoint.name!r} answered with its model {said[:100]!r}"
            active.warnings = (*active.warnings, text)

    def _emit_queued(self, ticket: Ticket) -> None:
        if self._emit is not None:
            sequences = [
                (submit.number, submit.id, prompt, submit.choice, len(submit.tokens))
                for prompt, active in enumerate(ticket.active_requests)
                for submit in active.submits
            ]
            name = events.http_request_id(ticket.active_requests[0].id)
            self._emit(events.Queued(name, time.monotonic(), sequences, self.source))


class _Output:
    """What has come of one request, on its way to the ticket. The ticket of a sequence may change while it runs."""

    def __init__(self, active: UpstreamRequest, ticket: Ticket, index: int, source: Source, emit: Emit | None) -> None:
        self._active = active
        self._sequence = ticket.sequences[active.submits[0].id]
        self._index = index
        self._source = source
        self._emit = emit
        self._held: list[Chunk] = []
        self._ended: set[int] = set()  # choices

    def add(self, *chunks: Chunk) -> None:
        self.deliver(self.shown(chunks))

    def hold(self, chunks: Sequence[Chunk]) -> None:
        """The end of the answer, until its tokens are counted."""
        self._held += chunks

    def shown(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """What of them the client may see."""
        return [shown for chunk in chunks if (shown := self._active.add(chunk)) is not None]

    def complete(self, reader: AnswerReader) -> None:
        self._active.settle(reader)
        self.deliver(self._held)

    def deliver(self, chunks: Sequence[Chunk]) -> None:
        received = time.monotonic()
        for chunk in chunks:
            if chunk.finish is not None:
                self._ended.add(chunk.choice)
            self._sequence.ticket.add(self._index, chunk)
        self._report(chunks, received)

    def end(self, finish: FinishReason, error: PenstockError | None = None) -> None:
        """End what has not ended."""
        missing = [choice for choice in range(len(self._active.choices)) if choice not in self._ended]
        if error is not None:
            self._active.error = (error.message, error.code)
            self._sequence.ticket.error = self._sequence.ticket.error or error
        self.add(*(Chunk(choice, "", [], finish=finish) for choice in missing))

    def _report(self, chunks: Sequence[Chunk], received: float) -> None:
        if self._emit is None or not chunks:
            return
        deltas = [
            Delta(id=self._active.submits[chunk.choice].id, tokens=chunk.tokens, finish=chunk.finish)
            for chunk in chunks
        ]
        now = time.monotonic()
        self._emit(events.Delivered("", now, received, None, deltas, [now] * len(deltas), self._source))


async def _events(response: Any) -> AsyncIterator[AnswerEvent]:
    """The events of a stream, or the whole answer of an upstream that does not stream."""
    kind = response.content_type
    if kind == "application/json":
        yield decode_answer(await read_body(response.content.iter_any()))
        return
    if kind != "text/event-stream":
        raise UpstreamFailed(f"it answered with {kind[:64]!r} instead of events")
    reader = EventReader()
    async for data in response.content.iter_any():
        for event in reader.push(data):
            yield event
        if reader.ended:
            return


async def read_body(pieces: AsyncIterator[bytes]) -> bytes:
    data = bytearray()
    async for piece in pieces:
        data += piece
        if len(data) > MAX_BODY:
            raise UpstreamFailed(f"its answer has more than {MAX_BODY} bytes")
    return bytes(data)
