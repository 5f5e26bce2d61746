"""Writes the answer to one request: the response, or the events that lead up to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from pydantic import BaseModel

from penstock.flow import CallDelta, Choice, Chunk, Completion, Message, SamplingParams
from penstock.intake.events import Event, named
from penstock.intake.fields import read_arguments
from penstock.intake.openai.responses import answers
from penstock.intake.openai.responses.answers import (
    DeletedResponse,
    Item,
    Numbered,
    OfferedFunction,
    OutputItemAdded,
    OutputItemDone,
    ReasoningState,
    Response,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseFailure,
    ResponseIncomplete,
    ResponseInProgress,
    ResponseStatus,
    ResponseUsage,
    Status,
    TextState,
)
from penstock.intake.openai.responses.drafts import CallDraft, Draft, MessageDraft, ReasoningDraft, Told
from penstock.intake.openai.responses.schemas import ResponseRequest
from penstock.intake.problems import Problem
from penstock.intake.turns import Turns

REQUEST = ResponseRequest
RESPONSE = Response
DELETED = DeletedResponse
EVENTS = answers.EVENTS

# For /openapi.json.
REQUESTS: tuple[type[BaseModel], ...] = (REQUEST,)
ANSWERS: tuple[type[msgspec.Struct], ...] = (RESPONSE, DELETED, *EVENTS)

Keep = Callable[[str, bytes, list[Message]], None]

_encode = msgspec.json.Encoder().encode


class ResponseWriter:
    """A stream is `first`, then the chunks as they come, then `last`. `keep` is given what can be gone on from, once it
    is whole: the response's id, its body and the conversation with it."""

    end: Sequence[Event] = ()

    def __init__(
        self,
        body: ResponseRequest,
        params: SamplingParams,
        said: Turns,
        *,
        request_id: str,
        model: str,
        created: int,
        keep: Keep | None,
    ) -> None:
        self._name = request_id
        self._said = said
        self._keep = keep
        self._asked = _asked(body, params, stored=keep is not None)
        self._asked |= {"id": f"resp_{request_id}", "created_at": created, "model": model}
        self._number = 0  # of the next event
        self._items: list[Item] = []  # that are complete
        self._draft: Draft | None = None  # the one that is being written

    def first(self, prompt: int, choice: int, prompt_tokens: list[int], cached_tokens: int = 0) -> list[Event]:
        opened = self._response("in_progress")
        return [self._event(ResponseCreated, response=opened), self._event(ResponseInProgress, response=opened)]

    def chunk(self, prompt: int, chunk: Chunk) -> list[Event]:
        events: list[Event] = []
        if chunk.reasoning:
            events += self._piece(ReasoningDraft, chunk.reasoning)
        if chunk.text:
            events += self._piece(MessageDraft, chunk.text)
        for call in chunk.calls:
            if call.id is not None:
                events += self._begin(CallDraft(self._item_name(), call.id, call.name or ""))
            if call.arguments and self._draft is not None:
                events.append(self._tell(self._draft.piece(call.arguments)))
        return events

    def last(self, completions: Sequence[Completion]) -> list[Event]:
        (completion,) = completions
        closing, response = self._finished(completion)
        kind = ResponseCompleted if response.status == "completed" else ResponseIncomplete
        return [*closing, self._event(kind, response=response)]

    def failed(self, told: Problem) -> list[Event]:
        closing = self._close("incomplete")
        error = ResponseFailure(
            code="rate_limit_exceeded" if told.status == 429 else "server_error", message=told.message
        )
        response = self._response("failed", error=error)
        return [*closing, self._event(ResponseFailed, response=response)]

    def whole(self, completions: Sequence[Completion]) -> bytes:
        """The answer in one piece, of a completion that did not fail: made as a stream of one chunk would be."""
        (completion,) = completions
        self.chunk(0, _as_chunk(completion.choices[0]))
        return _encode(self._finished(completion)[1])

    def _finished(self, completion: Completion) -> tuple[list[Event], Response]:
        (choice,) = completion.choices
        status, details = answers.status(choice), answers.incomplete_details(choice)
        closing = self._close(status)
        response = self._response(status, usage=answers.usage(completion), incomplete_details=details)
        if self._keep is not None:
            self._keep(response.id, _encode(response), _with(self._said, choice))
        return closing, response

    # --- items

    def _piece(self, kind: type[MessageDraft] | type[ReasoningDraft], text: str) -> list[Event]:
        opening = [] if isinstance(self._draft, kind) else self._begin(kind(self._item_name()))
        assert self._draft is not None
        return [*opening, self._tell(self._draft.piece(text))]

    def _begin(self, draft: Draft) -> list[Event]:
        closing = self._close("completed")
        self._draft = draft
        added = self._event(OutputItemAdded, output_index=len(self._items), item=draft.item("in_progress"))
        return [*closing, added, *map(self._tell, draft.opening())]

    def _close(self, status: Status) -> list[Event]:
        if self._draft is None:
            return []
        told = list(map(self._tell, self._draft.closing()))
        item = self._draft.item(status)
        done = self._event(OutputItemDone, output_index=len(self._items), item=item)
        self._items.append(item)
        self._draft = None
        return [*told, done]

    def _item_name(self) -> str:
        return f"{self._name}_{len(self._items) + (self._draft is not None)}"

    # --- events

    def _tell(self, told: Told) -> Event:
        assert self._draft is not None
        kind, fields = told
        return self._event(kind, item_id=self._draft.id, output_index=len(self._items), **fields)

    def _event(self, kind: type[Numbered], **fields: Any) -> Event:
        self._number += 1
        return named(kind(sequence_number=self._number - 1, **fields))

    def _response(self, status: ResponseStatus, *, usage: ResponseUsage | None = None, **more: Any) -> Response:
        return Response(**self._asked, **more, status=status, usage=usage, output=list(self._items))


def deleted(name: str) -> bytes:
    return _encode(DeletedResponse(id=name))


def _asked(body: ResponseRequest, params: SamplingParams, *, stored: bool) -> dict[str, Any]:
    """What a response says of its request, with the defaults that were taken."""
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
            for tool in body.tools or ()
        ],
        "top_p": params.top_p,
        "user": body.user,
        "metadata": body.metadata or {},
    }


def _as_chunk(choice: Choice) -> Chunk:
    calls = [
        CallDelta(index=index, id=call.id, name=call.name, arguments=call.arguments)
        for index, call in enumerate(choice.calls)
    ]
    return Chunk(choice.index, choice.text, [], reasoning=choice.reasoning or "", calls=tuple(calls))


def _with(said: Turns, choice: Choice) -> list[Message]:
    """The conversation with its answer. A call that was cut short is none."""
    turns = Turns(said.messages)
    if choice.reasoning:
        turns.think(choice.reasoning)
    if choice.text or not choice.calls:
        turns.say("assistant", choice.text)
    for call in choice.calls:
        if (given := read_arguments(call.arguments)) is not None:
            turns.call(call.id, call.name, given)
    return turns.messages
