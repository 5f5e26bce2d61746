"""A conversation put together from pieces, as the newer APIs send it: texts, thoughts, tool calls, results.

Chat templates want messages: what the assistant thought, said and called in one go is one of them, and each result of
a call is one that names the tool. Thoughts come first in a message, so thoughts behind a text or a call open the next
one: interleaved reasoning keeps its order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import InvalidRequest
from penstock.flow import Message


class ConversationBuilder:
    def __init__(self, before: Sequence[Message] = ()) -> None:
        """`before`: an earlier conversation that this one goes on with."""
        self._messages: list[Message] = [_copied(message) for message in before]
        self._tools: dict[str, str] = {
            call["id"]: call["function"]["name"] for message in before for call in message.get("tool_calls", ())
        }
        last = self._messages[-1] if self._messages else {}
        # Pieces of the last message. They are put together once: there may be thousands.
        self._texts: list[str] = [last["content"]] if last.get("content") else []
        self._thoughts: list[str] = [last["reasoning_content"]] if "reasoning_content" in last else []

    @property
    def messages(self) -> list[Message]:
        self._complete()
        return self._messages

    def begin_turn(self, role: str) -> None:
        """Of a turn that may say nothing."""
        self._turn(role)

    def add_text(self, role: str, text: str) -> None:
        """Pieces of one speaker in a row are one turn, with line breaks between."""
        self._turn(role)
        if text or self._texts:
            self._texts.append(text)

    def add_reasoning(self, text: str) -> None:
        message = self._turn("assistant")
        if self._texts or "tool_calls" in message:
            self._add({"role": "assistant", "content": ""})
        self._thoughts.append(text)

    def add_tool_call(self, call_id: str, name: str, arguments: dict[str, Any] | str) -> None:
        """`arguments` as a text: a length limit cut them short, so that they are no JSON."""
        self._tools[call_id] = name
        function = {"name": name, "arguments": arguments}
        calls = self._turn("assistant").setdefault("tool_calls", [])
        calls.append({"id": call_id, "type": "function", "function": function})

    def add_tool_result(self, call_id: str, text: str, *, param: str) -> None:
        """What came of a call. `param` is where the client wrote its id."""
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
        self._texts, self._thoughts = [], []

    def _complete(self) -> None:
        if self._texts:
            self._messages[-1]["content"] = "\n".join(self._texts)
        if self._thoughts:
            self._messages[-1]["reasoning_content"] = "".join(self._thoughts)


def _copied(message: Message) -> Message:
    return {**message, "tool_calls": list(message["tool_calls"])} if "tool_calls" in message else dict(message)
