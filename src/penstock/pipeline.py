"""The story of one request, from what a client asked to what it gets to read.

    accept:  render ─► tokenize ─► check ─► Flight with its Submits          (nothing has been queued yet)
    push:    Delta ─► text ─► stop strings ─► Chunk, and a Cancel when a stop string ends it early

A request to embed goes the same way; what comes back is one Delta without tokens, whose vector the Flight keeps.

Nothing here waits or sends: the caller carries Submits and Cancels to an engine and Deltas back, in its own way (a
plain loop in `offline`, an event loop in the server).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import get_args

import msgspec

from penstock.errors import ContextOverflow, InvalidRequest, by_code
from penstock.flow import (
    Cancel,
    Chunk,
    Completion,
    Delta,
    FinishReason,
    Pooling,
    Request,
    Submit,
    TextStream,
    TokenLogprobs,
)
from penstock.flow import Tokenizer as TokenizerProtocol
from penstock.prompt.template import ChatTemplate
from penstock.store.spec import ModelSpec
from penstock.stream.answer import Answer

POOLINGS: tuple[str, ...] = get_args(Pooling)


class Pipeline:
    def __init__(
        self,
        spec: ModelSpec,
        tokenizer: TokenizerProtocol | None,
        template: ChatTemplate | None,
        *,
        context: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spec = spec
        self.tokenizer = tokenizer
        self.template = template
        self.context = context
        self.clock = clock

    def accept(self, request: Request) -> Flight:
        """Turn a request into sequences for the engine, or raise InvalidRequest before any model time is spent."""
        tokens = self.tokenize(request)
        max_output = self._check(request, tokens)
        params = request.params
        now = self.clock()
        seed = params.seed if params.seed is not None else secrets.randbits(63)
        later_params = msgspec.structs.replace(params, prompt_logprobs=None)  # the first choice's will do for all
        submits = [
            Submit(
                id=f"{request.id}/{choice}",
                tokens=tokens,
                params=params if choice == 0 else later_params,
                seed=seed % 2**64,
                max_output=max_output,
                choice=choice,
                end_tokens=() if params.ignore_eos else self.spec.end_tokens,
                priority=request.priority,
                salt=request.salt,
                arrival=now,
                deadline=None if params.timeout_s is None else now + params.timeout_s,
                task=request.task,
                pooling=request.pooling,
            )
            for choice in range(params.n)
        ]
        answers = [Answer(choice, params, self._text_stream(tokens)) for choice in range(params.n)]
        return Flight(request.id, submits, answers)

    def tokenize(self, request: Request) -> list[int]:
        """The prompt as the model will see it."""
        if request.tokens is not None:
            return request.tokens
        if self.tokenizer is None:
            field = _field(request)
            raise InvalidRequest(f"this model has no tokenizer: give the {field} as token ids", param=field)
        if request.messages is None:
            return self.tokenizer.encode(request.text or "")
        if self.template is None:
            raise InvalidRequest("this model has no chat template: give a plain prompt", param="messages")
        text = self.template.render(
            request.messages,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            arguments=request.template_arguments,
        )
        return self.tokenizer.encode(text, add_special=False)  # the template writes them itself

    def _check(self, request: Request, tokens: list[int]) -> int:
        """Prompt and parameters against the model; gives the number of tokens that may come out."""
        if request.task == "embed":
            self._check_input(request, tokens)
            return 0
        where = _field(request)
        if not tokens:
            raise InvalidRequest("the prompt is empty", param=where)
        check_ids(tokens, self.spec.vocab_size, where)
        params = request.params
        for name, ids in params.token_ids().items():
            check_ids(ids, self.spec.vocab_size, name)
        room = self.context - len(tokens)
        asked = params.max_tokens if params.max_tokens is not None else max(params.min_tokens, 1)
        if asked > room:
            raise ContextOverflow(
                f"the prompt has {len(tokens)} tokens and up to {asked} more were asked for, but the context holds "
                f"{self.context}: shorten the prompt or lower max_tokens",
                param=where if room < 1 else "max_tokens",
            )
        return params.max_tokens if params.max_tokens is not None else room

    def _check_input(self, request: Request, tokens: list[int]) -> None:
        """What is to be embedded. Special tokens around an empty text do not make it one."""
        if not tokens or request.text == "":
            raise InvalidRequest("the input is empty", param="input")
        check_ids(tokens, self.spec.vocab_size, "input")
        if len(tokens) > self.context:
            raise ContextOverflow(
                f"the input has {len(tokens)} tokens, but the context holds {self.context}: shorten it", param="input"
            )
        if request.pooling not in POOLINGS:
            raise InvalidRequest(f"pooling must be {' or '.join(POOLINGS)}, got {request.pooling!r}", param="pooling")

    def _text_stream(self, prompt: Sequence[int]) -> TextStream:
        return self.tokenizer.text_stream(prompt) if self.tokenizer is not None else _NoText()


class Flight:
    """One request under way: its sequences out, its answers coming in."""

    def __init__(self, request_id: str, submits: list[Submit], answers: list[Answer]) -> None:
        self.id = request_id
        self.submits = submits
        self.answers = answers
        self.cached_tokens = 0
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        self._embedding: bytes | None = None
        self.error: tuple[str, str | None] | None = None  # message, code
        self._by_id = {submit.id: answer for submit, answer in zip(submits, answers, strict=True)}

    @property
    def done(self) -> bool:
        """The engine has let go of every sequence."""
        return all(answer.done for answer in self.answers)

    def push(self, delta: Delta) -> tuple[Chunk | None, Cancel | None]:
        """What this news means for the client, and for the engine."""
        answer = self._by_id[delta.id]
        if answer.index == 0:
            self.cached_tokens = max(self.cached_tokens, delta.cached_tokens)
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = [None, *delta.prompt_logprobs]
        if delta.embedding is not None:
            self._embedding = delta.embedding
        if delta.finish is FinishReason.ERROR and answer.finish is None and self.error is None:
            self.error = (delta.error or "the engine failed", delta.code)
        chunk = answer.push(delta)
        if answer.finish is FinishReason.STOP_STRING and not answer.done:
            return chunk, Cancel(delta.id, FinishReason.STOP_STRING, at_output=len(answer.tokens))
        return chunk, None

    def cancels(self) -> list[Cancel]:
        """What ends the sequences that still run, when the client has gone."""
        return [
            Cancel(submit.id, at_output=len(answer.tokens))
            for submit, answer in zip(self.submits, self.answers, strict=True)
            if not answer.done
        ]

    def completion(self) -> Completion:
        message, code = self.error or (None, None)
        return Completion(
            id=self.id,
            prompt_tokens=self.submits[0].tokens,
            choices=[answer.choice() for answer in self.answers],
            cached_tokens=self.cached_tokens,
            prompt_logprobs=self.prompt_logprobs,
            error=message,
            error_code=code,
        )

    def embedding(self) -> bytes:
        """The vector, as in Delta. Raises what kept it from being made."""
        if self._embedding is None:
            message, code = self.error or ("the request ended without an embedding", None)
            raise by_code(code, message)
        return self._embedding


class _NoText:
    """Of a model without a tokenizer: token ids are all there is."""

    def push(self, token: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


def _field(request: Request) -> str:
    """What the client calls that which it sent."""
    if request.messages is not None:
        return "messages"
    return "input" if request.task == "embed" else "prompt"


def check_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        wrong = next(token for token in ids if not 0 <= token < vocab_size)
        raise InvalidRequest(f"{param}: token id {wrong} is not in the vocabulary of {vocab_size}", param=param)
