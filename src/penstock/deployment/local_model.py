"""A model that this server runs: its files, its pipeline and its replicas."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from msgspec.structs import replace

from penstock.deployment.protocol import Call, Deployment, ModelCard, PromptCount, State
from penstock.deployment.replica_set import ReplicaSet
from penstock.deployment.ticket import Ticket
from penstock.errors import InvalidRequest, ModelNotFound
from penstock.flow import Request, Vocabulary
from penstock.pipeline import Pipeline, check_ids, prompt_field
from penstock.prompt.chat_format import ChatFormat
from penstock.prompt.template import NeedsRenderProcess
from penstock.store.files import ModelFiles
from penstock.stream.active_request import ActiveRequest
from penstock.tokenize.batch import BatchEncoder
from penstock.tokenize.tokenizer import Tokenizer

LONG_TEXT = 20_000  # characters: rendering and tokenizing more than that would delay the tokens of running streams
MAX_CHOICES = 4096  # of one request, over all its prompts: more would delay them too
CONSTRAINT_THREADS = 8  # more than grammar.checker.MAX_SLOW, so that slow constraints do not occupy all


class LocalModel:
    """A ServedModel. Rendering, tokenizing and compiling happen here, in threads where they may take long."""

    def __init__(
        self,
        card: ModelCard,
        files: ModelFiles,
        pipeline: Pipeline,
        tokenizer: Tokenizer,
        replicas: ReplicaSet,
        *,
        max_waiting: int,
    ) -> None:
        self.card = card
        self.files = files
        self.pipeline = pipeline
        self.tokenizer = tokenizer
        self.replicas = replicas
        self._max_waiting = max_waiting  # sequences in an engine's queue
        # Threads of their own: compiling a constraint may take seconds, and must not delay others' tokenizing.
        self._constrained = ThreadPoolExecutor(CONSTRAINT_THREADS, thread_name_prefix="constrained")
        self._encoder = BatchEncoder(tokenizer)
        replicas.add_ready_listener(self._adopt_facts)
        self.ensure_loaded: Callable[[], Awaitable[None]] | None = None  # `deployment.residency`; None: it always is
        self.end_waiting: Callable[[str], None] | None = None  # ends the requests that wait in `ensure_loaded`
        self.keep_alive: Callable[[float | None], None] | None = None  # sets how long it stays loaded when idle
        self.removed = False  # no more requests; those it has go on
        self.preparing = 0  # calls of `prepare` under way

    @property
    def name(self) -> str:
        return self.card.name

    @property
    def base(self) -> LocalModel:
        """The model whose engines run it: itself, unless it is an adapter."""
        return self

    @property
    def state(self) -> State:
        return self.replicas.state

    @property
    def deployments(self) -> list[Deployment]:
        return [*self.replicas.replicas]

    @property
    def sampling(self) -> dict[str, Any]:
        return self.files.sampling

    @property
    def vocabulary(self) -> Vocabulary:
        return self.tokenizer

    @property
    def template_variables(self) -> frozenset[str]:
        return self.pipeline.template.variables if self.pipeline.template is not None else frozenset()

    @property
    def chat_format(self) -> ChatFormat | None:
        return self.pipeline.chat_format

    async def prepare(self, requests: list[Request]) -> Call:
        if self.removed:
            raise ModelNotFound(f"the model {self.name!r} has been removed", param="model")
        count = sum(request.params.n for request in requests)
        limit = min(MAX_CHOICES, self._max_waiting + self.replicas.facts.get("max_sequences", MAX_CHOICES))
        if count > limit:  # a retry could never succeed
            raise InvalidRequest(
                f"the request asks for {count} choices, n times its prompts; at most {limit}", param="n"
            )
        self.preparing += 1
        try:
            return Call(requests, await self._accept(requests))
        finally:
            self.preparing -= 1

    async def submit(self, call: Call) -> Ticket:
        if self.ensure_loaded is not None:
            await self.ensure_loaded()
        return self.replicas.submit(call)

    def end_all(self, why: str) -> None:
        self.replicas.end_all(why)
        if self.end_waiting is not None:
            self.end_waiting(why)

    def close(self) -> None:
        """Threads and processes of the pipeline; the replicas are closed before or after that."""
        self._constrained.shutdown(wait=False, cancel_futures=True)
        self._encoder.close()
        self.pipeline.close()

    # --- prompts without a request

    def tokenize_text(self, text: str, *, add_special: bool) -> list[int]:
        """Raises ContextOverflow for a text that is too long for the context, as `prepare` does."""
        self.pipeline.check_length(len(text), "prompt")
        return self.tokenizer.encode(text, add_special=add_special)

    def prompt_tokens(self, request: Request) -> list[int]:
        """The prompt only. Raises the errors of the prompt that `prepare` would."""
        tokens = self.pipeline.tokenize(request)
        check_ids(tokens, self.files.spec.vocab_size, "tokens" if request.tokens is not None else "prompt")
        if not tokens:
            raise InvalidRequest("the prompt is empty", param="prompt")
        return tokens

    def count_prompt(self, request: Request) -> PromptCount:
        tokens = self.pipeline.tokenize(request)
        return PromptCount(len(tokens), tokens)

    def detokenize(self, tokens: list[int]) -> str:
        check_ids(tokens, self.files.spec.vocab_size, "tokens")
        return self.tokenizer.decode(tokens, skip_special=False)

    # --- the stages before the engine

    def _adopt_facts(self, facts: dict[str, Any]) -> None:
        """The context is less than the model's if memory is short; it may change with a restart, and so may what the
        weights are kept as, and what "auto" has become."""
        self.pipeline.context = facts["context"]
        drafts = self.card.drafts if "speculation" not in facts else facts["speculation"].partition(":")[0]
        self.card = replace(self.card, context=facts["context"], weights=facts.get("weights"), drafts=drafts)
        for replica in self.replicas.replicas:
            replica.card = self.card

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
    parts += [document.text for request in requests for document in request.documents]
    seen = 20 * sum(request.params.n for request in requests)
    while parts and seen <= LONG_TEXT:
        part = parts.pop()
        if isinstance(part, str | list | dict):
            seen += len(part)
            if seen <= LONG_TEXT and not isinstance(part, str):
                parts += part.values() if isinstance(part, dict) else part
    return seen > LONG_TEXT
