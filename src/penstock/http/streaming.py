"""How answers leave: whole, or as a stream of server-sent events. Either way the client is watched while they are made:
one that hangs up, or does not read for too long, cancels its request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.deployment.ticket import Chunks, Ticket
from penstock.errors import LedgerUnavailable
from penstock.flow import Chunk, Completion, Vocabulary
from penstock.http.client_watch import wait_for_disconnect
from penstock.http.direct_stream import DirectWriter, TextLane
from penstock.http.error_body import RenderedError
from penstock.http.error_response import error_response, report_error
from penstock.http.protocol import BODY_EXTENSION
from penstock.http.response_store import NewResponse
from penstock.http.response_warnings import warning_header
from penstock.http.route_headers import route_headers
from penstock.http.service import Service
from penstock.http.sse import Event, TextEvent, frame_events
from penstock.observe import events
from penstock.observe.events import Emit
from penstock.stream.active_request import ActiveRequest
from penstock.stream.choice import ChoiceStream

logger = logging.getLogger(__name__)

SERVER_SENT_EVENTS = "text/event-stream; charset=utf-8"
PORTION = 256  # tokens written at once: with log-probabilities that takes ten milliseconds
MANY_ANSWERS, MANY_TOKENS = 32, 1024  # more of either are written in a thread, for the same reason


class Stalled(Exception):
    """The client does not read."""


class Writer(Protocol):
    """Writes the answers of one API as JSON texts; the framing is done here. Prompts are counted from 0."""

    end: Sequence[Event]  # of a stream that is whole

    def first(self, prompt: int, choice: int, prompt_tokens: list[int], cached_tokens: int = 0) -> Sequence[Event]: ...

    def chunk(self, prompt: int, chunk: Chunk) -> Sequence[Event]: ...

    def text_event(self, prompt: int, choice: int) -> TextEvent | None:
        """The event that `chunk` makes of text and nothing else, which depends on nothing but the text; None: there is
        no such event."""

    def last(self, completions: Sequence[Completion]) -> Sequence[Event]: ...

    def error_events(self, told: RenderedError) -> Sequence[Event]:
        """The end of a stream that breaks off."""

    def full_response(self, completions: Sequence[Completion]) -> bytes: ...

    def answer_as(self, model: str, vocabulary: Vocabulary) -> None:
        """Another model answers than the one asked for. Called before anything is written."""


class FullResponse(Response):
    """The complete answer, once it is complete: as JSON, of the active requests that have landed."""

    def __init__(
        self,
        service: Service,
        ticket: Ticket,
        write: Callable[[Sequence[ActiveRequest]], bytes],
        stored: NewResponse | None = None,
    ) -> None:
        super().__init__()
        self.service, self.ticket, self.write, self.stored = service, ticket, write, stored

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if not await _unless_gone(receive, self.ticket.finished()):
                return
            if error := self.ticket.error:
                await settle_failure(self.ticket)
                await error_response(error, scope)(scope, receive, send)
                return
            if account := self.ticket.account:
                account.measure(self.ticket)
            headers = {
                "server-timing": server_timing(self.ticket),
                **limit_headers(self.ticket),
                **route_headers(self.ticket),
                **warning_header(self.ticket.active_requests),
            }
            body = await self._write_body()
            if account:
                await account.settle(self.ticket)
            if self.stored is not None:
                await self.stored.put()
            start = time.monotonic()
            await Response(body, 200, headers, "application/json")(scope, receive, send)
            tell_flushed(self.service.emit, self.ticket, start, len(body))
        finally:
            self.service.finish(self.ticket)

    async def _write_body(self) -> bytes:
        answers = sum(len(active.choices) for active in self.ticket.active_requests)
        tokens = sum(answer.output_tokens for active in self.ticket.active_requests for answer in active.choices)
        if answers <= MANY_ANSWERS and tokens <= MANY_TOKENS:
            return self.write(self.ticket.active_requests)
        return await asyncio.to_thread(self.write, self.ticket.active_requests)


class EventStream(Response):
    """Server-sent events, one per token as long as the client keeps up, several tokens in one when it does not."""

    def __init__(
        self,
        service: Service,
        ticket: Ticket,
        writer: Writer,
        *,
        content_type: str = SERVER_SENT_EVENTS,
        stored: NewResponse | None = None,
    ) -> None:
        """`content_type`: of the lines, where the writer writes lines instead of events."""
        super().__init__()
        self.service, self.ticket, self.writer = service, ticket, writer
        self.name = events.http_request_id(ticket.active_requests[0].id)
        self.content_type = content_type
        self.stored = stored
        self.opened: set[tuple[int, int]] = set()  # choices whose first event is out, by prompt and choice
        self.over: float | None = None  # when the last of it was written
        self.direct: DirectWriter | None = None  # past ASGI's layers, where the server has such a way
        self.broken: Exception | None = None  # what went wrong on that way
        self.holds_end = ticket.account is not None and ticket.account.durable
        self.unfinished: list[ChoiceStream] | None = None  # choices, without the last ones that have finished

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await _unless_gone(receive, self._stream(scope, receive, send))
            if scope["state"].get("unread"):  # so little that it waited with the kernel, which has hung up
                raise Stalled
        except Stalled:
            name = scope["state"]["request_id"]
            logger.info("request %s: dropped, the client does not read", name, extra={"request_id": name})
        finally:
            self._report_writes()
            self.service.finish(self.ticket, self.over)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Nothing is sent before there is something to say: what fails until then can still be told by a status.
        chunks = await self.ticket.take()
        if error := self.ticket.error:
            await settle_failure(self.ticket)
            await error_response(error, scope)(scope, receive, send)
            return
        if account := self.ticket.account:
            account.first_output = time.monotonic()
        name_model(self.writer, self.ticket)
        headers = _stream_headers(self.ticket, self.content_type)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if (body := scope.get("extensions", {}).get(BODY_EXTENSION)) is not None:
            self.direct = DirectWriter(body, self.name, self.service.emit)
        try:
            rest = await self._send_output(send, chunks)
            completions = [active.completion() for active in self.ticket.active_requests]
            end = [*rest, *self.writer.last(completions), *self.writer.end]
            if self.stored is not None:
                await self.stored.put()
        except Stalled:
            raise
        except Exception as error:
            await settle_failure(self.ticket)
            end = [*self.writer.error_events(report_error(error, scope))]
        await self._send(send, end, more=False)
        self.over = time.monotonic()

    async def _send_output(self, send: Send, chunks: Chunks) -> list[Event]:
        """Until its usage is recorded. Returns the events of the last chunks, which go out with the end. Raises the
        error that the stream ends in."""
        account = self.ticket.account
        while chunks:
            if self.broken is not None:
                raise self.broken
            if account and self._completes(chunks):
                await account.settle(self.ticket)
                if self.ticket.done and self.ticket.error is None and len(chunks) <= PORTION:
                    return [event for prompt, chunk in merge_chunks(chunks) for event in self._events(prompt, chunk)]
            await self._send_chunks(send, chunks)
            if error := self.ticket.error:
                raise error
            chunks = await self.ticket.take(None if self.direct is None else self._write_through)
        if error := self.ticket.error:
            raise error
        if account:
            await account.settle(self.ticket)
        return []

    def _write_through(self, chunks: Chunks) -> bool:
        """The sink of the ticket while the client keeps up: called by the replica. Must not raise."""
        assert self.direct is not None
        if not self.direct.body.ready or (self.holds_end and self._completes(chunks)):
            return False
        try:
            data = frame_events([event for prompt, chunk in chunks for event in self._events(prompt, chunk)])
            if data:
                self.direct.write(data, time.monotonic())
        except Exception as error:  # for the task, which tells the client
            self.broken = error
            return False
        return True

    def _completes(self, chunks: Chunks) -> bool:
        """Whether the answer is complete with these chunks: they wait until its usage is recorded."""
        if not any(chunk.finish is not None for _, chunk in chunks):
            return False
        if self.unfinished is None:
            self.unfinished = [choice for active in self.ticket.active_requests for choice in active.choices]
        while self.unfinished and self.unfinished[-1].finish is not None:
            self.unfinished.pop()
        return not self.unfinished

    def _report_writes(self) -> None:
        if self.direct is not None:
            self.direct.report()

    async def _send_chunks(self, send: Send, chunks: Chunks) -> None:
        """In portions, between which others have their turn: much may have piled up."""
        events: list[Event] = []
        tokens = 0
        for prompt, chunk in merge_chunks(chunks):
            if tokens + len(chunk.tokens) > PORTION:
                await self._send(send, events)
                await asyncio.sleep(0)
                events, tokens = [], 0
            events += self._events(prompt, chunk)
            tokens += len(chunk.tokens)
        await self._send(send, events)

    async def _send(self, send: Send, events: Iterable[Event], *, more: bool = True) -> None:
        """Waits while what was sent before has not been read."""
        self._report_writes()
        data = frame_events(events)
        if data or not more:
            start = time.monotonic()
            try:
                async with asyncio.timeout(self.service.stall_s):
                    await send({"type": "http.response.body", "body": data, "more_body": more})
            except TimeoutError:
                raise Stalled from None
            finally:
                tell_flushed(self.service.emit, self.ticket, start, len(data))

    def _events(self, prompt: int, chunk: Chunk) -> Sequence[Event]:
        if (prompt, chunk.choice) in self.opened:
            return self.writer.chunk(prompt, chunk)
        self.opened.add((prompt, chunk.choice))
        active = self.ticket.active_requests[prompt]
        self._open_lane(prompt, chunk.choice)
        opening = self.writer.first(prompt, chunk.choice, active.submits[0].tokens, active.cached_tokens)
        return [*opening, *self.writer.chunk(prompt, chunk)]

    def _open_lane(self, prompt: int, choice: int) -> None:
        """The short way for what follows."""
        event = self.writer.text_event(prompt, choice) if self.direct is not None else None
        if event is not None and self.direct is not None:
            active = self.ticket.active_requests[prompt]
            sequence = self.ticket.sequences[active.submits[choice].id]
            sequence.lane = TextLane(self.ticket, active.short_way(choice), event, self.direct)


async def settle_failure(ticket: Ticket) -> None:
    """Before the client is told an error, which is what it gets in any case."""
    if ticket.account is not None:
        with contextlib.suppress(LedgerUnavailable):
            await ticket.account.settle(ticket)


def limit_headers(ticket: Ticket) -> dict[str, str]:
    """What is left of the limits: `x-ratelimit-*`."""
    return {} if ticket.account is None else ticket.account.headers()


def name_model(writer: Writer, ticket: Ticket) -> None:
    """The answer says who gave it."""
    model, asked = ticket.model, "" if ticket.call is None else ticket.call.route.asked
    if model is not None and asked not in ("", model.card.name):
        writer.answer_as(model.card.name, model.vocabulary)


def tell_flushed(emit: Emit | None, ticket: Ticket, start: float, num_bytes: int) -> None:
    if emit is not None:
        emit(events.Flushed(events.http_request_id(ticket.active_requests[0].id), time.monotonic(), start, num_bytes))


def merge_chunks(chunks: Chunks) -> Chunks:
    """What piled up while the client was slow, as one chunk per choice, or one per portion."""
    if len(chunks) == 1:
        return chunks
    piles: list[tuple[int, list[Chunk]]] = []
    newest: dict[tuple[int, int], tuple[list[Chunk], int]] = {}  # of each choice: its pile, and the tokens in that
    for active, chunk in chunks:
        pile, tokens = newest.get((active, chunk.choice), ([], 0))
        if not pile or tokens + len(chunk.tokens) > PORTION:
            pile, tokens = [], 0
            piles.append((active, pile))
        pile.append(chunk)
        newest[active, chunk.choice] = (pile, tokens + len(chunk.tokens))
    return [(active, _join(pile) if len(pile) > 1 else pile[0]) for active, pile in piles]


def _join(chunks: list[Chunk]) -> Chunk:
    last = chunks[-1]
    return Chunk(
        last.choice,
        "".join([chunk.text for chunk in chunks]),
        [token for chunk in chunks for token in chunk.tokens],
        [entry for chunk in chunks for entry in chunk.logprobs or ()] or None,
        last.finish,
        last.stop,
        "".join([chunk.reasoning for chunk in chunks]),
        tuple([call for chunk in chunks for call in chunk.calls]),
        chunks[0].prompt_logprobs,  # which come with the first
        last.hidden_tokens,
        tuple([step for chunk in chunks for step in chunk.drafts]),
    )


def server_timing(ticket: Ticket) -> str:
    """The slowest choice's stages, in the form browsers and proxies know (Server-Timing)."""
    timings = [answer.timings for active in ticket.active_requests for answer in active.choices if answer.timings]
    if not timings:
        return ""
    last = max(timings, key=lambda one: one.finished)
    stages = {"queue": last.queue_s, "prefill": last.prefill_s, "decode": last.decode_s}
    return ", ".join(f"{name};dur={spent * 1000:.1f}" for name, spent in stages.items() if spent is not None)


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work as long as the client is there; whether it was done."""
    doing = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        await asyncio.wait({doing, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            return False
        doing.result()
        return True
    finally:
        for task in (doing, watching):
            task.cancel()


def _stream_headers(ticket: Ticket, content_type: str) -> list[tuple[bytes, bytes]]:
    arrival = ticket.active_requests[0].submits[0].arrival
    first_ms = (time.monotonic() - arrival) * 1000
    return [
        (b"content-type", content_type.encode()),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),  # proxies must not hold tokens back
        (b"server-timing", f"first;dur={first_ms:.1f}".encode()),
        *((name.encode(), text.encode()) for name, text in limit_headers(ticket).items()),
        *((name.encode(), text.encode()) for name, text in route_headers(ticket).items()),
        *((name.encode(), text.encode()) for name, text in warning_header(ticket.active_requests).items()),
    ]
