"""The numbered events of a response's stream: while it is generated, or replayed from a stored response.

Both number the events alike, so that a client can resume after any of them (`starting_after`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.http.api.logprobs import TokenLogprob
from penstock.http.api.responses.output_items import CallDraft, EventFields, ItemDraft, MessageDraft, ReasoningDraft
from penstock.http.api.responses.response_bodies import (
    Item,
    Numbered,
    OutputFunctionCall,
    OutputItemAdded,
    OutputItemDone,
    OutputMessage,
    Response,
    ResponseCompleted,
    ResponseCreated,
    ResponseIncomplete,
    ResponseInProgress,
    Status,
)
from penstock.http.sse import Event, tagged_event
from penstock.system import typed

# The pieces of each item: characters, and number of log-probabilities.
Pieces = list[list[tuple[int, int]]]


class EventSequence:
    def __init__(self) -> None:
        self.items: list[Item] = []  # complete ones
        self.draft: ItemDraft | None = None  # the item in progress
        self.pieces: Pieces = []
        self._number = 0  # of the next event

    def opening(self, response: Response) -> list[Event]:
        return [self.event(ResponseCreated, response=response), self.event(ResponseInProgress, response=response)]

    def begin(self, draft: ItemDraft) -> list[Event]:
        closing = self.close("completed")
        self.draft = draft
        self.pieces.append([])
        added = self.event(OutputItemAdded, output_index=len(self.items), item=draft.item("in_progress"))
        return [*closing, added, *map(self._item_event, draft.opening())]

    def add_piece(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> Event:
        assert self.draft is not None
        self.pieces[-1].append((len(text), len(logprobs)))
        return self._item_event(self.draft.piece(text, logprobs))

    def close(self, status: Status) -> list[Event]:
        if self.draft is None:
            return []
        closing = list(map(self._item_event, self.draft.closing()))
        item = self.draft.item(status)
        done = self.event(OutputItemDone, output_index=len(self.items), item=item)
        self.items.append(item)
        self.draft = None
        return [*closing, done]

    def end(self, response: Response) -> Event:
        return self.event(
            ResponseCompleted if response.status == "completed" else ResponseIncomplete, response=response
        )

    def event(self, kind: type[Numbered], **fields: Any) -> Event:
        self._number += 1
        return tagged_event(kind(sequence_number=self._number - 1, **fields))

    def _item_event(self, event: EventFields) -> Event:
        assert self.draft is not None
        kind, fields = event
        return self.event(kind, item_id=self.draft.id, output_index=len(self.items), **fields)


def initial_response(response: Response) -> Response:
    """The response as it was before any output."""
    return msgspec.structs.replace(
        response, status="in_progress", output=[], usage=None, completed_at=None, incomplete_details=None
    )


def replay_events(body: bytes, pieces: bytes) -> list[Event]:
    """All events of the stream of a stored response, which may not have been streamed."""
    response = typed.decode_json(body, Response)
    sequence = EventSequence()
    events = sequence.opening(initial_response(response))
    for item, lengths in zip(response.output, typed.decode_json(pieces, Pieces), strict=True):
        draft, text, logprobs = _draft_of(item)
        events += sequence.begin(draft)
        for characters, tokens in lengths:
            events.append(sequence.add_piece(text[:characters], logprobs[:tokens]))
            text, logprobs = text[characters:], logprobs[tokens:]
    last: Status = "completed" if response.status == "completed" else "incomplete"
    return [*events, *sequence.close(last), sequence.end(response)]


def _draft_of(item: Item) -> tuple[ItemDraft, str, Sequence[TokenLogprob]]:
    """A draft of the item, its text and log-probabilities."""
    name = item.id.partition("_")[2]
    if isinstance(item, OutputFunctionCall):
        return CallDraft(name, item.call_id, item.name), item.arguments, ()
    if isinstance(item, OutputMessage):
        (part,) = item.content
        return MessageDraft(name), part.text, part.logprobs
    return ReasoningDraft(name, encrypted=isinstance(item.encrypted_content, str)), item.content[0].text, ()
