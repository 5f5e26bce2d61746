"""A conversation with tool calls, and the messages that a chat template gets for it."""

from __future__ import annotations

from penstock.flow import Message, Tool
from penstock.prompt.template_messages import template_messages
from penstock.tool_calls.registry import GENERIC
from penstock.tool_calls.syntax import ToolCallSyntax

TOOL = Tool(name="weather", description="d", parameters={"properties": {"city": {"type": "string"}}})
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
OTHER = {"id": "call_2", "type": "function", "function": {"name": "now", "arguments": ""}}
WRITTEN = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
CONVERSATION: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Oslo?"},
    {"role": "assistant", "content": "Wait.", "tool_calls": [CALL, OTHER]},
    {"role": "tool", "content": "7", "tool_call_id": "call_1"},
    {"role": "tool", "content": "noon", "tool_call_id": "call_2", "name": "clock"},
    {"role": "user", "content": "Thanks."},
]


def messages_for(
    messages: list[Message], syntax: ToolCallSyntax = GENERIC, tools: tuple[Tool, ...] = (), system_role: bool = True
) -> list[Message]:
    return template_messages(messages, syntax, tools, lambda text: f"raw {text}", system_role=system_role)
