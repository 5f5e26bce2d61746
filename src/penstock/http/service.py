"""What the routes have in common: the model, the pipeline in front of the engine, and whether anybody is let in."""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from msgspec.structs import replace

from penstock.deployment.replica import Replica, State
from penstock.deployment.ticket import Ticket
from penstock.errors import InvalidRequest, ModelNotFound, ShuttingDown
from penstock.flow import FinishReason, Request
from penstock.http.response_warnings import WarningLog
from penstock.observe import events
from penstock.observe.events import Emit
from penstock.observe.metrics import PrometheusMetrics
from penstock.pipeline import Pipeline, check_ids, prompt_field
from penstock.prompt.template import NeedsRenderProcess
from penstock.store.files import ModelFiles
from penstock.stream.active_request import ActiveRequest
from penstock.tokenize.batch import BatchEncoder
from penstock.tokenize.tokenizer import Tokenizer

LONG_TEXT = 20_000  # characters: rendering and tokenizing more than that would hold up everybody else's tokens
MAX_ANSWERS = 4096  # of one request, over all its prompts: so would more of them
CONSTRAINT_THREADS = 8  # more than grammar.checker.MAX_SLOW, so that slow constraints do not occupy all
MANY_ANSWERS = 64  # are counted off the loop: each takes some 50 µs


class Service:
    def __init__(
        self,
        files: ModelFiles,
        pipeline: Pipeline,
        tokenizer: Tokenizer,
        replica: Replica,
        metrics: PrometheusMetrics,
        *,
        stall_s: float,
        max_waiting: int,
        emit: Emit | None = None,
        keep_texts: bool = False,
    ) -> None:
        self.files = files
        self.pipeline = pipeline
        self.tokenizer = tokenizer
        self.replica = replica
        self.metrics = metrics
        self.stall_s = stall_s
        self.max_waiting = max_waiting  # sequences in the engine's queue
        self.emit = emit
        self.keep_texts = keep_texts
        self.created = int(time.time())
        self.warnings = WarningLog()
        # Compiling a constraint may take seconds; those that wait for it hold up nobody else's tokenizing.
        self._constrained = ThreadPoolExecutor(CONSTRAINT_THREADS, thread_name_prefix="constrained")
        self._encoder = BatchEncoder(tokenizer)
        self.closing = False
        self.open = 0  # requests whose clients are still there

    @property
    def ready(self) -> bool:
        return not self.closing and self.replica.state is State.READY

    @property
    def template_variables(self) -> frozenset[str]:
        """What the model's chat template can be told beside the messages."""
        return self.pipeline.template.variables if self.pipeline.template is not None else frozenset()

    def check_model(self, name: str | None) -> None:
        """None: the only one there is."""
        if name is not None and name.removesuffix(":latest") != self.files.name:  # Ollama's clients add that
            raise ModelNotFound(
                f"the model {name[:128]!r} does not exist; this server has {self.files.name!r}", param="model"
            )

    async def submit(self, requests: list[Request], tenant: str) -> Ticket:
        """All of them or none, for this tenant. The caller must call `finish` with the ticket."""
        self._check_open()
        count = sum(request.params.n for request in requests)
        most = min(MAX_ANSWERS, self.max_waiting + self.replica.facts.get("max_sequences", MAX_ANSWERS))
        if count > most:  # it would be refused however often it came
            raise InvalidRequest(f"{count} answers were asked for in one request, {most} are the most", param="n")
        active_requests = await self._accept([replace(request, tenant=tenant) for request in requests])
        self.warnings.log(active_requests)
        self._check_open()  # that may have taken its time
        ticket = self.replica.submit(active_requests)
        self.open += 1
        return ticket

    def tokenize_text(self, text: str, *, add_special: bool) -> list[int]:
        """Raises ContextOverflow for a text that is too long for the context, as `submit` does."""
        self.pipeline.check_length(len(text), "prompt")
        return self.tokenizer.encode(text, add_special=add_special)

    def prompt_tokens(self, asked: Request) -> list[int]:
        """The prompt alone: nothing is run. Raises what `submit` would, of the prompt."""
        tokens = self.pipeline.tokenize(asked)
        check_ids(tokens, self.files.spec.vocab_size, "tokens" if asked.tokens is not None else "prompt")
        if not tokens:
            raise InvalidRequest("the prompt is empty", param="prompt")
        return tokens

    def detokenize(self, tokens: list[int]) -> str:
        check_ids(tokens, self.files.spec.vocab_size, "tokens")
        return self.tokenizer.decode(tokens, skip_special=False)

    def finish(self, ticket: Ticket, at: float | None = None) -> None:
        """The client has its answer (since `at`), or has gone. What still runs for it ends; the books are closed."""
        self.open -= 1
        if not ticket.done:
            self.replica.cancel(ticket)
        if sum(len(active.choices) for active in ticket.active_requests) > MANY_ANSWERS:
            asyncio.get_running_loop().run_in_executor(None, self._count, ticket)
        else:
            self._count(ticket)
        if self.emit is not None:
            self.emit(self._finished(ticket, time.monotonic() if at is None else at))

    def _count(self, ticket: Ticket) -> None:
        for active in ticket.active_requests:
            for answer in active.choices:
                reason = answer.finish or FinishReason.CANCELLED
                # A prompt counts once, however many answers it has, as in `usage`.
                prompt, cached = (len(active.submits[0].tokens), active.cached_tokens) if answer.index == 0 else (0, 0)
                counts = (prompt, cached, len(answer.tokens))
                self.metrics.count_ended(self.replica.source, reason, *counts, answer.timings)

    def _finished(self, ticket: Ticket, at: float) -> events.Finished:
        ended = [
            events.Ended(
                number=submit.number,
                finish=answer.finish or FinishReason.CANCELLED,
                stop=answer.stop,
                prompt_tokens=len(submit.tokens),
                cached_tokens=active.cached_tokens,
                output_tokens=len(answer.tokens),
                text=answer.text if self.keep_texts else None,
            )
            for active in ticket.active_requests
            for submit, answer in zip(active.submits, active.choices, strict=True)
        ]
        error = ticket.error
        name = events.http_request_id(ticket.active_requests[0].id)
        return events.Finished(name, at, ended, error.code if error else None, error.message if error else None)

    async def drain(self, deadline_s: float) -> None:
        """Let nobody in, and wait for those inside; after the deadline they are shown out."""
        self.closing = True
        until = time.monotonic() + deadline_s
        while self.open and time.monotonic() < until:
            await asyncio.sleep(0.02)
        self.end_all()

    def end_all(self) -> None:
        self.replica.end_all("the server is shutting down")

    def close(self) -> None:
        self._constrained.shutdown(wait=False, cancel_futures=True)
        self._encoder.close()
        self.pipeline.close()

    def _check_open(self) -> None:
        if self.closing:
            raise ShuttingDown("the server is shutting down and takes no more requests")

    async def _accept(self, requests: list[Request]) -> list[ActiveRequest]:
        def accept() -> list[ActiveRequest]:
            return [self.pipeline.accept(request) for request in requests]

        if any(map(_may_be_constrained, requests)):
            return await self._accept_constrained(requests)
        if not is_long(requests):
            with contextlib.suppress(NeedsRenderProcess):
                return [await self._accept_short(request) for request in requests]
        return await asyncio.to_thread(accept)

    async def _accept_constrained(self, requests: list[Request]) -> list[ActiveRequest]:
        """Prompts first: what is too long is refused, and does not wait in line with all of its text."""

        def prompt(request: Request) -> tuple[str, list[int]]:
            text = self.pipeline.render(request)
            return text, self.pipeline.encode(request, text)

        def take_off() -> list[ActiveRequest]:
            return [self.pipeline.take_off(request, *made) for request, made in zip(requests, prompts, strict=True)]

        prompts = await asyncio.to_thread(lambda: [prompt(request) for request in requests])
        return await asyncio.get_running_loop().run_in_executor(self._constrained, take_off)

    async def _accept_short(self, request: Request) -> ActiveRequest:
        """`Pipeline.accept`, with its text tokenized together with those of other requests."""
        text = self.pipeline.render(request, may_wait=False)
        start = self.pipeline.clock()
        tokens = request.tokens
        if tokens is None:
            try:
                # A template writes special tokens itself.
                tokens = await self._encoder.encode(text, add_special=request.messages is None)
            except InvalidRequest as error:  # it does not know what the client calls the text
                raise InvalidRequest(error.message, param=prompt_field(request)) from None
        return self.pipeline.take_off(request, text, self.pipeline.tokenized(request, start, tokens))


def _may_be_constrained(request: Request) -> bool:
    """Whether a constraint may have to be compiled for it; even no thoughts at all are a budget."""
    return bool(request.params.constraint or request.tools) or request.thinking_budget is not None


def is_long(requests: list[Request]) -> bool:
    """Whether their prompts have more than LONG_TEXT characters, tool calls and thoughts included. An answer takes as
    long as 20 of them. Looks no further."""
    parts: list[Any] = [part for request in requests for part in (request.messages, request.text, request.tokens)]
    seen = 20 * sum(request.params.n for request in requests)
    while parts and seen <= LONG_TEXT:
        part = parts.pop()
        if isinstance(part, str | list | dict):
            seen += len(part)
            if seen <= LONG_TEXT and not isinstance(part, str):
                parts += part.values() if isinstance(part, dict) else part
    return seen > LONG_TEXT
