"""A request on its way to an upstream: its body out, the chunks of its answer in."""

from __future__ import annotations

import asyncio
import struct
import time

import msgspec

from penstock.deployment.upstream_answer import AnswerReader
from penstock.deployment.upstream_body import to_body
from penstock.deployment.upstream_endpoint import Endpoint
from penstock.deployment.upstream_usage import TokenCounter, count_text, estimate_prompt, settle
from penstock.deployment.upstream_vocabulary import UNKNOWN
from penstock.errors import ContextOverflow, UpstreamFailed
from penstock.flow import Chunk, FinishReason, Request, Submit, Timings
from penstock.flow.identity import SequenceNumbers
from penstock.pipeline import prompt_field
from penstock.stream.active_request import ActiveRequest
from penstock.stream.remote_choice import RemoteChoice
from penstock.system import typed

_encode = msgspec.json.Encoder().encode


class UpstreamRequest(ActiveRequest):
    """One prompt. Its token ids are UNKNOWN: they are only counted."""

    def __init__(
        self, request: Request, endpoint: Endpoint, tokenizer: TokenCounter | None, numbers: SequenceNumbers
    ) -> None:
        """Raises InvalidRequest for what the upstream cannot serve."""
        route, body = to_body(request, endpoint)
        self.request = request
        self.route = route
        self.body = _encode(body)
        self.estimate = estimate_prompt(request, tokenizer)
        self.task: asyncio.Task[None] | None = None  # that exchanges it with the upstream
        self.ending: str | None = None  # why the server gives it up
        self.answered_by: str | None = None  # the model that the upstream says it is
        self.sent = self.first = 0.0
        self._tokenizer = tokenizer
        self.remote_choices = [RemoteChoice(index, request.params) for index in range(request.params.n)]
        now = time.monotonic()
        submits = [
            Submit(
                id=f"{request.id}/{index}",
                tokens=[UNKNOWN] * self.estimate,
                params=request.params,
                seed=0,
                max_output=request.params.max_tokens or 0,
                choice=index,
                tenant=request.tenant,
                arrival=now,
                task=request.task,
                number=numbers.draw(),
                background=request.background,
                tier=request.tier,
                weight=request.weight,
            )
            for index in range(request.params.n)
        ]
        super().__init__(request.id, submits, self.remote_choices.__getitem__, request.warnings)

    @property
    def has_begun(self) -> bool:
        return self.sent > 0.0

    def check_context(self, context: int | None, *, exact: bool) -> None:
        """Raises ContextOverflow for a prompt that cannot fit. Without a tokenizer only one that is far too long."""
        least = self.estimate if exact else self.estimate // 8
        if context is not None and least > context:
            raise ContextOverflow(
                f"the prompt has at least {least} tokens, but the context holds {context}: shorten it",
                param=prompt_field(self.request),
            )

    def add(self, chunk: Chunk) -> Chunk | None:
        """Returns what of it is shown."""
        self.first = self.first or time.monotonic()
        choice = self.remote_choices[chunk.choice]
        if choice.finish is FinishReason.CONTENT_FILTER:
            return None
        choice.add(chunk)
        return self.shown(chunk)

    @property
    def filtered(self) -> bool:
        """Whether a rule has ended it: nothing more of the answer is needed."""
        ends = [choice.finish for choice in self.remote_choices]
        return FinishReason.CONTENT_FILTER in ends and None not in ends

    def settle(self, reader: AnswerReader) -> None:
        """The answer is complete: count its tokens by the upstream's `usage`, or by the estimate."""
        estimates = [count_text("".join(texts), self._tokenizer) for texts in reader.texts]
        limit = self.request.params.max_tokens
        usage = settle(
            reader.usage,
            prompt_estimate=self.estimate,
            output_estimate=sum(estimates),
            output_limit=None if limit is None else limit * len(estimates),
        )
        self.usage_estimated = usage.estimated
        self.cached_tokens = usage.cached
        self.submits = [msgspec.structs.replace(one, tokens=[UNKNOWN] * usage.prompt) for one in self.submits]
        total, left, reasoning = max(sum(estimates), 1), usage.output, usage.reasoning
        for choice, estimate in zip(self.remote_choices, estimates, strict=True):
            share = usage.output * estimate // total if choice is not self.remote_choices[-1] else left
            choice.count(share, min(reasoning, share))
            left, reasoning = left - share, max(reasoning - share, 0)
        now, arrival = time.monotonic(), self.submits[0].arrival
        for choice in self.remote_choices:
            choice.timings = Timings(arrival, self.sent, self.first or now, now)

    def read_embedding(self, body: bytes) -> None:
        """Raises UpstreamFailed if there is no vector in it."""
        try:
            answer = typed.decode_json(body, _Embeddings)
            vector = answer.data[0].embedding
        except (msgspec.DecodeError, IndexError, RecursionError) as error:
            raise UpstreamFailed(f"it sent an invalid embedding: {str(error)[:200]}") from None
        length = sum(value * value for value in vector) ** 0.5
        if not vector or not 0 < length < float("inf"):
            raise UpstreamFailed("it sent an embedding without a length")
        self._embedding = struct.pack(f"<{len(vector)}f", *(value / length for value in vector))
        if answer.usage is not None and answer.usage.prompt_tokens:
            self.submits = [
                msgspec.structs.replace(one, tokens=[UNKNOWN] * answer.usage.prompt_tokens) for one in self.submits
            ]
        else:
            self.usage_estimated = True


class _Vector(msgspec.Struct):
    embedding: list[float]


class _EmbeddingUsage(msgspec.Struct):
    prompt_tokens: int = 0


class _Embeddings(msgspec.Struct):
    data: list[_Vector]
    usage: _EmbeddingUsage | None = None
