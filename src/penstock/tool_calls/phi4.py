"""Phi 4 mini: `<|tool_call|>[{"name": …, "arguments": {…}}]<|/tool_call|>`, or `functools[…]`."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.flow import Message, Tool
from penstock.tool_calls.json_calls import JsonListSyntax
from penstock.tool_calls.syntax import TemplateSigns, describe_tool, to_json


class Phi4(JsonListSyntax):
    name = "phi4"
    signs = TemplateSigns(("<|tool|>", "<|/tool|>"), uses_tools=False)
    opening = "<|tool_call|>"
    closing = "<|/tool_call|>"
    also_opening = ("functools[",)
    template_renders_tools = False

    def adapt_messages(self, messages: list[Message], tools: Sequence[Tool], *, system_role: bool) -> list[Message]:
        """The template takes any role, and tools as a field of the system message."""
        adapted = [self.write_calls_as_text(message) for message in messages]
        adapted = [{**each, "role": "tool_response"} if each.get("role") == "tool" else each for each in adapted]
        if not tools:
            return adapted
        if not adapted or adapted[0].get("role") != "system":
            adapted.insert(0, {"role": "system", "content": ""})
        return [{**adapted[0], "tools": to_json([describe_tool(tool) for tool in tools])}, *adapted[1:]]
