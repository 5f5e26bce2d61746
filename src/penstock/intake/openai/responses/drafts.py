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
    delta: type[Numbered]

    def __init__(self, item_id: str) -> None:
        self.id = item_id
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


class MessageDraft(Draft):
    delta = OutputTextDelta

    def __init__(self, name: str) -> None:
        super().__init__(f"msg_{name}")

    def opening(self) -> list[Told]:
        return [(ContentPartAdded, {"part": OutputTextPart(text="")})]

    def closing(self) -> list[Told]:
        text = self.text
        return [(OutputTextDone, {"text": text}), (ContentPartDone, {"part": OutputTextPart(text=text)})]

    def item(self, status: Status) -> OutputMessage:
        content = [] if status == "in_progress" else [OutputTextPart(text=self.text)]
        return OutputMessage(id=self.id, status=status, content=content)


class ReasoningDraft(Draft):
    delta = ReasoningTextDelta

    def __init__(self, name: str) -> None:
        super().__init__(f"rs_{name}")

    def opening(self) -> list[Told]:
        return [(ContentPartAdded, {"part": ReasoningTextPart(text="")})]

    def closing(self) -> list[Told]:
        text = self.text
        return [(ReasoningTextDone, {"text": text}), (ContentPartDone, {"part": ReasoningTextPart(text=text)})]

    def item(self, status: Status) -> OutputReasoning:
        content = [] if status == "in_progress" else [ReasoningTextPart(text=self.text)]
        return OutputReasoning(id=self.id, content=content, status=status)


class CallDraft(Draft):
    delta = ArgumentsDelta

    def __init__(self, name: str, call_id: str, function: str) -> None:
        super().__init__(f"fc_{name}")
        self.call_id = call_id
        self.function = function

    def closing(self) -> list[Told]:
        return [(ArgumentsDone, {"arguments": self.text, "name": self.function})]

    def item(self, status: Status) -> OutputFunctionCall:
        written = "" if status == "in_progress" else self.text
        return OutputFunctionCall(
            id=self.id, call_id=self.call_id, name=self.function, arguments=written, status=status
        )
