"""What all routes share: the model, the pipeline, the replica, and whether requests are accepted."""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from msgspec.structs import replace

from penstock.deployment.protocol import State
from penstock.deployment.replica import Replica
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

LONG_TEXT = 20_000  # characters: rendering and tokenizing more than that would delay the tokens of running streams
MAX_CHOICES = 4096  # of one request, over all its prompts: more would delay them too
CONSTRAINT_THREADS = 8  # more than grammar.checker.MAX_SLOW, so that slow constraints do not occupy all
MANY_CHOICES = 64  # more are counted in a thread: each takes some 50 µs


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
        # Threads of their own: compiling a constraint may take seconds, and must not delay others' tokenizing.
        self._constrained = ThreadPoolExecutor(CONSTRAINT_THREADS, thread_name_prefix="constrained")
        self._encoder = BatchEncoder(tokenizer)
        self.closing = False
        self.open = 0  # requests without a complete response

    @property
    def ready(self) -> bool:
        return not self.closing and self.replica.state is State.READY

    @property
    def template_variables(self) -> frozenset[str]:
        """The variables of the model's chat template."""
        return self.pipeline.template.variables if self.pipeline.template is not None else frozenset()

    def check_model(self, name: str | None) -> None:
        """Raises ModelNotFound. None stands for the served model."""
        if name is not None and name.removesuffix(":latest") != self.files.name:  # Ollama's clients add the tag
            raise ModelNotFound(
                f"the model {name[:128]!r} does not exist; this server has {self.files.name!r}", param="model"
            )

    async def submit(self, requests: list[Request], tenant: str) -> Ticket:
        """Submits all requests or none. The caller must call `finish` with the ticket."""
        self._check_open()
        count = sum(request.params.n for request in requests)
        limit = min(MAX_CHOICES, self.max_waiting + self.replica.facts.get("max_sequences", MAX_CHOICES))
        if count > limit:  # a retry could never succeed
            raise InvalidRequest(
                f"the request asks for {count} choices, n times its prompts; at most {limit}", param="n"
            )
        active_requests = await self._accept([replace(request, tenant=tenant) for request in requests])
        self.warnings.log(active_requests)
        self._check_open()  # accepting may have taken long
        ticket = self.replica.submit(active_requests)
        self.open += 1
        return ticket

    def tokenize_text(self, text: str, *, add_special: bool) -> list[int]:
        """Raises ContextOverflow for a text that is too long for the context, as `submit` does."""
        self.pipeline.check_length(len(text), "prompt")
        return self.tokenizer.encode(text, add_special=add_special)

    def prompt_tokens(self, request: Request) -> list[int]:
        """The prompt only, nothing is submitted. Raises the errors of the prompt that `submit` would."""
        tokens = self.pipeline.tokenize(request)
        check_ids(tokens, self.files.spec.vocab_size, "tokens" if request.tokens is not None else "prompt")
        if not tokens:
            raise InvalidRequest("the prompt is empty", param="prompt")
        return tokens

    def detokenize(self, tokens: list[int]) -> str:
        check_ids(tokens, self.files.spec.vocab_size, "tokens")
        return self.tokenizer.decode(tokens, skip_special=False)

    def finish(self, ticket: Ticket, at: float | None = None) -> None:
        """The response is sent (since `at`), or the client has disconnected: cancels what still runs, and counts it."""
        self.open -= 1
        if not ticket.done:
            self.replica.cancel(ticket)
        if sum(len(active.choices) for active in ticket.active_requests) > MANY_CHOICES:
            asyncio.get_running_loop().run_in_executor(None, self._count, ticket)
        else:
            self._count(ticket)
        if self.emit is not None:
            self.emit(self._finished_event(ticket, time.monotonic() if at is None else at))

    def _count(self, ticket: Ticket) -> None:
        for active in ticket.active_requests:
            for choice in active.choices:
                reason = choice.finish or FinishReason.CANCELLED
                # A prompt counts once, however many choices it has, as in `usage`.
                prompt, cached = (len(active.submits[0].tokens), active.cached_tokens) if choice.index == 0 else (0, 0)
                counts = (prompt, cached, len(choice.tokens))
                self.metrics.count_ended(self.replica.source, reason, *counts, choice.timings)

    def _finished_event(self, ticket: Ticket, at: float) -> events.Finished:
        ended = [
            events.Ended(
                number=submit.number,
                finish=choice.finish or FinishReason.CANCELLED,
                stop=choice.stop,
                prompt_tokens=len(submit.tokens),
                cached_tokens=active.cached_tokens,
                output_tokens=len(choice.tokens),
                text=choice.text if self.keep_texts else None,
            )
            for active in ticket.active_requests
            for submit, choice in zip(active.submits, active.choices, strict=True)
        ]
        error = ticket.error
        name = events.http_request_id(ticket.active_requests[0].id)
        return events.Finished(name, at, ended, error.code if error else None, error.message if error else None)

    async def drain(self, deadline_s: float) -> None:
        """Accept no more requests, and wait for the open ones; after the deadline they end."""
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
            raise ShuttingDown("the server is shutting down and accepts no more requests")

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
        """Prompts first: one that is too long is rejected, and does not queue for the constraint with all of its
        text."""

        def prompt(request: Request) -> tuple[str, list[int]]:
            text = self.pipeline.render(request)
            return text, self.pipeline.encode(request, text)

        def activate() -> list[ActiveRequest]:
            return [self.pipeline.activate(request, *made) for request, made in zip(requests, prompts, strict=True)]

        prompts = await asyncio.to_thread(lambda: [prompt(request) for request in requests])
        return await asyncio.get_running_loop().run_in_executor(self._constrained, activate)

    async def _accept_short(self, request: Request) -> ActiveRequest:
        """`Pipeline.accept`, with the text tokenized in one batch with those of other requests."""
        text = self.pipeline.render(request, may_wait=False)
        start = self.pipeline.clock()
        tokens = request.tokens
        if tokens is None:
            try:
                # A template writes special tokens itself.
                tokens = await self._encoder.encode(text, add_special=request.messages is None)
            except InvalidRequest as error:  # the encoder does not know the field's name
                raise InvalidRequest(error.message, param=prompt_field(request)) from None
        return self.pipeline.activate(request, text, self.pipeline.record_prompt(request, start, tokens))


def _may_be_constrained(request: Request) -> bool:
    """Whether a constraint may have to be compiled. A thinking budget needs one too, even 0."""
    return bool(request.params.constraint or request.tools) or request.thinking_budget is not None


def is_long(requests: list[Request]) -> bool:
    """Whether the prompts have more than LONG_TEXT characters, tool calls and reasoning included. Each choice costs as
    much as 20 characters. Stops counting there."""
    parts: list[Any] = [part for request in requests for part in (request.messages, request.text, request.tokens)]
    seen = 20 * sum(request.params.n for request in requests)
    while parts and seen <= LONG_TEXT:
        part = parts.pop()
        if isinstance(part, str | list | dict):
            seen += len(part)
            if seen <= LONG_TEXT and not isinstance(part, str):
                parts += part.values() if isinstance(part, dict) else part
    return seen > LONG_TEXT
