"""Items of a response while they are written: the events of their pieces, and the final item."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from penstock.http.api.logprobs import TokenLogprob
from penstock.http.api.responses import encrypted_reasoning
from penstock.http.api.responses.response_bodies import (
    ArgumentsDelta,
    ArgumentsDone,
    ContentPartAdded,
    ContentPartDone,
    Item,
    Numbered,
    OutputFunctionCall,
    OutputMessage,
    OutputReasoning,
    OutputTextDelta,
    OutputTextDone,
    OutputTextPart,
    ReasoningTextDelta,
    ReasoningTextDone,
    ReasoningTextPart,
    Status,
)

# An event's type and its fields, without its number and its item.
EventFields = tuple[type[Numbered], dict[str, Any]]


class ItemDraft(ABC):
    prefix: str  # of ids
    delta: type[Numbered]

    def __init__(self, name: str) -> None:
        self.id = f"{self.prefix}_{name}"
        self.pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def opening(self) -> list[EventFields]:
        return []

    def piece(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> EventFields:
        """`logprobs` are those of a message's tokens."""
        self.pieces.append(text)
        return self.delta, {"delta": text}

    @abstractmethod
    def closing(self) -> list[EventFields]: ...

    @abstractmethod
    def item(self, status: Status) -> Item:
        """Empty while in progress: its text comes in pieces."""


class MessageDraft(ItemDraft):
    prefix, delta = "msg", OutputTextDelta

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.logprobs: list[TokenLogprob] = []

    def opening(self) -> list[EventFields]:
        return [(ContentPartAdded, {"part": OutputTextPart(text="")})]

    def piece(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> EventFields:
        self.logprobs += logprobs
        kind, fields = super().piece(text)
        return kind, {**fields, "logprobs": tuple(logprobs)}

    def closing(self) -> list[EventFields]:
        part = self._part()
        return [(OutputTextDone, {"text": part.text, "logprobs": part.logprobs}), (ContentPartDone, {"part": part})]

    def item(self, status: Status) -> Item:
        return OutputMessage(id=self.id, status=status, content=[] if status == "in_progress" else [self._part()])

    def _part(self) -> OutputTextPart:
        return OutputTextPart(text=self.text, logprobs=tuple(self.logprobs))


class ReasoningDraft(ItemDraft):
    prefix, delta = "rs", ReasoningTextDelta

    def __init__(self, name: str, *, encrypted: bool) -> None:
        """`encrypted`: the final item has `encrypted_content` too."""
        super().__init__(name)
        self.encrypted = encrypted

    def opening(self) -> list[EventFields]:
        return [(ContentPartAdded, {"part": ReasoningTextPart(text="")})]

    def closing(self) -> list[EventFields]:
        text = self.text
        return [(ReasoningTextDone, {"text": text}), (ContentPartDone, {"part": ReasoningTextPart(text=text)})]

    def item(self, status: Status) -> Item:
        if status == "in_progress":
            return OutputReasoning(id=self.id, status=status, content=[])
        return OutputReasoning(
            id=self.id,
            status=status,
            content=[ReasoningTextPart(text=self.text)],
            encrypted_content=encrypted_reasoning.pack(self.text) if self.encrypted else UNSET,
        )


class CallDraft(ItemDraft):
    prefix, delta = "fc", ArgumentsDelta

    def __init__(self, name: str, call_id: str, function: str) -> None:
        super().__init__(name)
        self.call_id = call_id
        self.function = function

    def closing(self) -> list[EventFields]:
        return [(ArgumentsDone, {"arguments": self.text, "name": self.function})]

    def item(self, status: Status) -> OutputFunctionCall:
        written = "" if status == "in_progress" else self.text
        return OutputFunctionCall(
            id=self.id, call_id=self.call_id, name=self.function, arguments=written, status=status
        )
