"""A conversation put together from pieces, as the newer APIs send it: texts, thoughts, tool calls, results.

Chat templates want messages: all that the assistant said, thought and called in one turn is one of them, and each
result of a call is one that names the tool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import InvalidRequest
from penstock.flow import Message


class Turns:
    def __init__(self, before: Sequence[Message] = ()) -> None:
        """`before`: an earlier conversation that this one goes on with."""
        self.messages: list[Message] = [dict(message) for message in before]
        self._tools: dict[str, str] = {
            call["id"]: call["function"]["name"] for message in before for call in message.get("tool_calls", ())
        }

    def say(self, role: str, text: str) -> None:
        """Pieces of one speaker in a row are one turn, with line breaks between."""
        turn = self._turn(role)
        turn["content"] = f"{turn['content']}\n{text}" if turn["content"] else text

    def think(self, text: str) -> None:
        turn = self._turn("assistant")
        turn["reasoning_content"] = turn.get("reasoning_content", "") + text

    def call(self, call_id: str, name: str, arguments: dict[str, Any]) -> None:
        self._tools[call_id] = name
        turn = self._turn("assistant")
        function = {"name": name, "arguments": arguments}
        turn["tool_calls"] = [*turn.get("tool_calls", ()), {"id": call_id, "type": "function", "function": function}]

    def result(self, call_id: str, text: str, *, param: str) -> None:
        """What came of a call. `param` is where the client wrote its id."""
        if call_id not in self._tools:
            raise InvalidRequest(f"{param} is {call_id[:64]!r}, but no call before it has this id", param=param)
        self.messages.append({"role": "tool", "content": text, "tool_call_id": call_id, "name": self._tools[call_id]})

    def _turn(self, role: str) -> Message:
        if not self.messages or self.messages[-1]["role"] != role:
            self.messages.append({"role": role, "content": ""})
        return self.messages[-1]
