"""Writes the response to one request, whole or as a stream of events."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET
from pydantic import BaseModel

from penstock.deployment.protocol import PromptCount
from penstock.flow import CallDelta, Choice, Chunk, Completion, Message, SamplingParams
from penstock.flow.protocols import Vocabulary
from penstock.http.api.conversation import ConversationBuilder
from penstock.http.api.fields import read_arguments
from penstock.http.api.responses import response_bodies
from penstock.http.api.responses.event_sequence import EventSequence
from penstock.http.api.responses.logprobs import TextLogprobs
from penstock.http.api.responses.output_items import CallDraft, MessageDraft, ReasoningDraft
from penstock.http.api.responses.response_bodies import (
    DeletedResponse,
    InputItems,
    InputTokens,
    OfferedFunction,
    OutputMessage,
    ReasoningState,
    Response,
    ResponseFailed,
    ResponseFailure,
    ResponseStatus,
    ResponseUsage,
    TextState,
)
from penstock.http.api.responses.schemas import InputTokensRequest, ResponseRequest
from penstock.http.error_body import RenderedError
from penstock.http.response_store import StoredResponse
from penstock.http.sse import Event
from penstock.system import typed

REQUEST = ResponseRequest
RESPONSE = Response
DELETED = DeletedResponse
COUNT = InputTokensRequest
COUNTED = InputTokens
LISTED = InputItems
EVENTS = response_bodies.EVENTS

# For /openapi.json.
REQUESTS: tuple[type[BaseModel], ...] = (REQUEST, COUNT)
ANSWERS: tuple[type[msgspec.Struct], ...] = (RESPONSE, DELETED, COUNTED, LISTED, *EVENTS)

Store = Callable[[str, StoredResponse], None]

_encode = msgspec.json.Encoder().encode


class ResponseWriter:
    """A stream is `first`, then `chunk` for each chunk, then `last`. `store` is called with the id and the complete
    response."""

    end: Sequence[Event] = ()

    def __init__(
        self,
        body: ResponseRequest,
        params: SamplingParams,
        turns: ConversationBuilder,
        *,
        request_id: str,
        model: str,
        vocabulary: Vocabulary,
        store: Store | None,
        items: bytes = b"[]",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`items`: the input items, as in StoredResponse. `clock` returns seconds since 1970."""
        self._name = request_id
        self._turns = turns
        self._store = store
        self._items = items
        self._clock = clock
        self._echoed_fields = _request_fields(body, params, stored=store is not None)
        self._echoed_fields |= {"id": f"resp_{request_id}", "created_at": int(clock()), "model": model}
        self._encrypted = body.with_encrypted_reasoning
        self._vocabulary = vocabulary if body.with_logprobs else None
        self._tokens: TextLogprobs | None = None
        self._sequence = EventSequence()

    def answer_as(self, model: str, vocabulary: Vocabulary) -> None:
        self._echoed_fields["model"] = model
        self._vocabulary = None if self._vocabulary is None else vocabulary

    def first(self, prompt: int, choice: int, prompt_tokens: list[int], cached_tokens: int = 0) -> list[Event]:
        self._look_up_tokens(prompt_tokens)
        return self._sequence.opening(self._response("in_progress"))

    def chunk(self, prompt: int, chunk: Chunk) -> list[Event]:
        tokens, sequence, events = self._tokens, self._sequence, []
        if tokens is not None:
            tokens.push(chunk.logprobs or (), chunk.finish)
        if chunk.reasoning:
            if not isinstance(sequence.draft, ReasoningDraft):
                events += sequence.begin(ReasoningDraft(self._item_name(), encrypted=self._encrypted))
            events.append(sequence.add_piece(chunk.reasoning))
            if tokens is not None:
                tokens.skip(chunk.reasoning)
        if chunk.text:
            if not isinstance(sequence.draft, MessageDraft):
                events += sequence.begin(MessageDraft(self._item_name()))
            events.append(sequence.add_piece(chunk.text, tokens.take(chunk.text) if tokens is not None else ()))
        for call in chunk.calls:
            if call.id is not None:
                events += sequence.begin(CallDraft(self._item_name(), call.id, call.name or ""))
            if call.arguments and sequence.draft is not None:
                events.append(sequence.add_piece(call.arguments))
        return events

    def last(self, completions: Sequence[Completion]) -> list[Event]:
        (completion,) = completions
        closing, response = self._finish(completion)
        return [*closing, self._sequence.end(response)]

    def text_event(self, prompt: int, choice: int) -> None:
        return None

    def error_events(self, error: RenderedError) -> list[Event]:
        closing = self._sequence.close("incomplete")
        failure = ResponseFailure(
            code="rate_limit_exceeded" if error.status == 429 else "server_error", message=error.message
        )
        response = self._response("failed", error=failure)
        return [*closing, self._sequence.event(ResponseFailed, response=response)]

    def full_response(self, completions: Sequence[Completion]) -> bytes:
        """The whole response, of a completion that did not fail: written as a stream of one chunk."""
        (completion,) = completions
        self._look_up_tokens(completion.prompt_tokens)
        self.chunk(0, _as_chunk(completion.choices[0]))
        return _encode(self._finish(completion)[1])

    def _finish(self, completion: Completion) -> tuple[list[Event], Response]:
        (choice,) = completion.choices
        status = response_bodies.status(choice)
        closing = self._sequence.close(status)
        response = self._response(
            status,
            usage=response_bodies.usage(completion),
            incomplete_details=response_bodies.incomplete_details(choice),
            completed_at=int(self._clock()) if status == "completed" else None,
            context=completion.context or UNSET,
        )
        if self._store is not None:
            conversation, pieces = _encode(_with_answer(self._turns, choice)), _encode(self._sequence.pieces)
            self._store(response.id, StoredResponse(_encode(response), conversation, self._items, pieces))
        return closing, response

    def _look_up_tokens(self, prompt_tokens: Sequence[int]) -> None:
        if self._vocabulary is not None:
            self._tokens = TextLogprobs(self._vocabulary, prompt_tokens)

    def _item_name(self) -> str:
        return f"{self._name}_{len(self._sequence.pieces)}"

    def _response(self, status: ResponseStatus, *, usage: ResponseUsage | None = None, **more: Any) -> Response:
        return Response(**self._echoed_fields, **more, status=status, usage=usage, output=list(self._sequence.items))


def encode_deleted(name: str) -> bytes:
    return _encode(DeletedResponse(id=name))


def encode_token_count(counted: PromptCount) -> bytes:
    return _encode(InputTokens(input_tokens=counted.num_tokens, estimated=counted.estimated or UNSET))


def has_logprobs(body: bytes) -> bool:
    """Whether a stored response has log-probabilities."""
    messages = [item for item in typed.decode_json(body, Response).output if isinstance(item, OutputMessage)]
    return any(part.logprobs for message in messages for part in message.content)


def _request_fields(body: ResponseRequest, params: SamplingParams, *, stored: bool) -> dict[str, Any]:
    """The request's fields that the response repeats, with defaults filled in."""
    choice = body.tool_choice
    form = body.text.format if body.text is not None else None
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": ReasoningState(effort=body.reasoning.effort if body.reasoning is not None else None),
        "store": stored,
        "temperature": params.temperature,
        "text": TextState(format={"type": "text"} if form is None else form.model_dump(by_alias=True)),
        "tool_choice": choice.model_dump() if isinstance(choice, BaseModel) else choice or "auto",
        "tools": [
            OfferedFunction(
                name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
            )
            for tool in body.functions
        ],
        "top_p": params.top_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "top_logprobs": params.logprobs or 0,
        "truncation": body.truncation or "disabled",
        "user": body.user,
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
        "metadata": body.metadata or {},
    }


def _as_chunk(choice: Choice) -> Chunk:
    calls = [
        CallDelta(index=index, id=call.id, name=call.name, arguments=call.arguments)
        for index, call in enumerate(choice.calls)
    ]
    return Chunk(
        choice.index, choice.text, [], choice.logprobs, choice.finish, None, choice.reasoning or "", tuple(calls)
    )


def _with_answer(before: ConversationBuilder, choice: Choice) -> list[Message]:
    """The conversation with its answer. Arguments that were cut short stay a string."""
    turns = ConversationBuilder(before.messages)
    if choice.reasoning:
        turns.add_reasoning(choice.reasoning)
    if choice.text or not choice.calls:
        turns.add_text("assistant", choice.text)
    for call in choice.calls:
        given = read_arguments(call.arguments)
        turns.add_tool_call(call.id, call.name, call.arguments if given is None else given)
    return turns.messages
