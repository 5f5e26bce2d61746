"""Items of a response while they are being written: which event each piece of one makes, and what it is in the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from penstock.intake.openai.responses.answers import (
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

# A kind of event and its fields, but for its number and its item.
Told = tuple[type[Numbered], dict[str, Any]]


class Draft(ABC):
    prefix: str  # of ids
    delta: type[Numbered]

    def __init__(self, name: str) -> None:
        self.id = f"{self.prefix}_{name}"
        self.pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def opening(self) -> list[Told]:
        return []

    def piece(self, text: str) -> Told:
        self.pieces.append(text)
        return self.delta, {"delta": text}

    @abstractmethod
    def closing(self) -> list[Told]: ...

    @abstractmethod
    def item(self, status: Status) -> Item:
        """In progress it is empty: what it says comes in pieces."""


class TextDraft(Draft):
    """An item whose content is one part of text."""

    done: type[Numbered]
    part: type[OutputTextPart] | type[ReasoningTextPart]
    kind: type[OutputMessage] | type[OutputReasoning]

    def opening(self) -> list[Told]:
        return [(ContentPartAdded, {"part": self.part(text="")})]

    def closing(self) -> list[Told]:
        text = self.text
        return [(self.done, {"text": text}), (ContentPartDone, {"part": self.part(text=text)})]

    def item(self, status: Status) -> Item:
        content: list[Any] = [] if status == "in_progress" else [self.part(text=self.text)]
        return self.kind(id=self.id, status=status, content=content)


class MessageDraft(TextDraft):
    prefix, kind, part, delta, done = "msg", OutputMessage, OutputTextPart, OutputTextDelta, OutputTextDone


class ReasoningDraft(TextDraft):
    prefix, kind, part, delta, done = "rs", OutputReasoning, ReasoningTextPart, ReasoningTextDelta, ReasoningTextDone


class CallDraft(Draft):
    prefix, delta = "fc", ArgumentsDelta

    def __init__(self, name: str, call_id: str, function: str) -> None:
        super().__init__(name)
        self.call_id = call_id
        self.function = function

    def closing(self) -> list[Told]:
        return [(ArgumentsDone, {"arguments": self.text, "name": self.function})]

    def item(self, status: Status) -> OutputFunctionCall:
        written = "" if status == "in_progress" else self.text
        return OutputFunctionCall(
            id=self.id, call_id=self.call_id, name=self.function, arguments=written, status=status
        )
