"""The items of a response in their order, as events of a stream: while they are written, or again from a kept response.

Both number their events alike, so that a stream can be taken up again behind any of them (`starting_after`).
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
from penstock.http.sse import Event, named

# Of each item the pieces it was sent in: characters, and log-probabilities.
Pieces = list[list[tuple[int, int]]]


class EventSequence:
    def __init__(self) -> None:
        self.items: list[Item] = []  # that are complete
        self.draft: ItemDraft | None = None  # the one that is being written
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
        told = list(map(self._item_event, self.draft.closing()))
        item = self.draft.item(status)
        done = self.event(OutputItemDone, output_index=len(self.items), item=item)
        self.items.append(item)
        self.draft = None
        return [*told, done]

    def end(self, response: Response) -> Event:
        return self.event(
            ResponseCompleted if response.status == "completed" else ResponseIncomplete, response=response
        )

    def event(self, kind: type[Numbered], **fields: Any) -> Event:
        self._number += 1
        return named(kind(sequence_number=self._number - 1, **fields))

    def _item_event(self, told: EventFields) -> Event:
        assert self.draft is not None
        kind, fields = told
        return self.event(kind, item_id=self.draft.id, output_index=len(self.items), **fields)


def initial_response(response: Response) -> Response:
    """As it was when nothing had been written."""
    return msgspec.structs.replace(
        response, status="in_progress", output=[], usage=None, completed_at=None, incomplete_details=None
    )


def replay_events(body: bytes, pieces: bytes) -> list[Event]:
    """All events of a stream that led, or would have led, to a kept response."""
    response = msgspec.json.decode(body, type=Response)
    sequence = EventSequence()
    events = sequence.opening(initial_response(response))
    for item, lengths in zip(response.output, msgspec.json.decode(pieces, type=Pieces), strict=True):
        draft, text, logprobs = _draft_of(item)
        events += sequence.begin(draft)
        for characters, tokens in lengths:
            events.append(sequence.add_piece(text[:characters], logprobs[:tokens]))
            text, logprobs = text[characters:], logprobs[tokens:]
    last: Status = "completed" if response.status == "completed" else "incomplete"
    return [*events, *sequence.close(last), sequence.end(response)]


def _draft_of(item: Item) -> tuple[ItemDraft, str, Sequence[TokenLogprob]]:
    """An item to be written anew, and what is to be written."""
    name = item.id.partition("_")[2]
    if isinstance(item, OutputFunctionCall):
        return CallDraft(name, item.call_id, item.name), item.arguments, ()
    if isinstance(item, OutputMessage):
        (part,) = item.content
        return MessageDraft(name), part.text, part.logprobs
    return ReasoningDraft(name, packed=isinstance(item.encrypted_content, str)), item.content[0].text, ()
