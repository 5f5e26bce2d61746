"""Builds the messages of a conversation from the pieces that newer APIs send: texts, reasoning, tool calls, results.

Chat templates expect messages: reasoning, text and tool calls of one assistant turn are one message, and each tool
result is one that names the tool. Reasoning comes first in a message, so reasoning after a text or a call starts a new
one: interleaved reasoning keeps its order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import InvalidRequest
from penstock.flow import Message


class ConversationBuilder:
    def __init__(self, before: Sequence[Message] = ()) -> None:
        """`before` is an earlier conversation, which this one continues."""
        self._messages: list[Message] = [_copy(message) for message in before]
        self._tools: dict[str, str] = {
            call["id"]: call["function"]["name"] for message in before for call in message.get("tool_calls", ())
        }
        last = self._messages[-1] if self._messages else {}
        # Pieces of the last message, joined once: there may be thousands.
        self._texts: list[str] = [last["content"]] if last.get("content") else []
        self._reasoning: list[str] = [last["reasoning_content"]] if "reasoning_content" in last else []

    @property
    def messages(self) -> list[Message]:
        self._complete()
        return self._messages

    def begin_turn(self, role: str) -> None:
        """Starts a turn that may have no text."""
        self._turn(role)

    def add_text(self, role: str, text: str) -> None:
        """Consecutive texts of one role are one turn, joined by line breaks."""
        self._turn(role)
        if text or self._texts:
            self._texts.append(text)

    def add_reasoning(self, text: str) -> None:
        message = self._turn("assistant")
        if self._texts or "tool_calls" in message:
            self._add({"role": "assistant", "content": ""})
        self._reasoning.append(text)

    def add_tool_call(self, call_id: str, name: str, arguments: dict[str, Any] | str) -> None:
        """`arguments` are a string if max_tokens cut them short, so that they are not JSON."""
        self._tools[call_id] = name
        function = {"name": name, "arguments": arguments}
        calls = self._turn("assistant").setdefault("tool_calls", [])
        calls.append({"id": call_id, "type": "function", "function": function})

    def add_tool_result(self, call_id: str, text: str, *, param: str) -> None:
        """`param` is the field with the call's id."""
        if call_id not in self._tools:
            raise InvalidRequest(f"{param} is {call_id[:64]!r}, but no call before it has this id", param=param)
        self._add({"role": "tool", "content": text, "tool_call_id": call_id, "name": self._tools[call_id]})

    def _turn(self, role: str) -> Message:
        if not self._messages or self._messages[-1]["role"] != role:
            self._add({"role": role, "content": ""})
        return self._messages[-1]

    def _add(self, message: Message) -> None:
        self._complete()
        self._messages.append(message)
        self._texts, self._reasoning = [], []

    def _complete(self) -> None:
        if self._texts:
            self._messages[-1]["content"] = "\n".join(self._texts)
        if self._reasoning:
            self._messages[-1]["reasoning_content"] = "".join(self._reasoning)


def _copy(message: Message) -> Message:
    return {**message, "tool_calls": list(message["tool_calls"])} if "tool_calls" in message else dict(message)
