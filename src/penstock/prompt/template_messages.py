"""Messages as a chat template takes them, above all their tool calls and the results of these.

Messages come in OpenAI's shape. Templates get arguments as objects, the name of the tool beside each result, and ids
that they accept. Templates without tools get text instead (`ToolCallSyntax.adapt_messages`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock.flow import Message, Tool
from penstock.flow.tools import MAX_DEPTH, is_nested_deeper
from penstock.tool_calls.syntax import ToolCallSyntax, describe_tool

ShowUnparsed = Callable[[str], Any]  # what a template gets in place of arguments that are no JSON object


def template_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The template's variable `tools`."""
    return [{"type": "function", "function": describe_tool(tool)} for tool in tools]


def template_messages(
    messages: Sequence[Message],
    syntax: ToolCallSyntax,
    tools: Sequence[Tool],
    show_unparsed: ShowUnparsed,
    *,
    system_role: bool,
) -> list[Message]:
    """The template's variable `messages`. `system_role`: the template takes system messages."""
    normalized = [_normalize(message, place, syntax, show_unparsed) for place, message in enumerate(messages)]
    _name_results(normalized)
    return syntax.adapt_messages(normalized, tools, system_role=system_role)


def merge_assistant_messages(messages: Sequence[Message]) -> list[Message]:
    """For templates that show no reasoning, many of which require alternating turns: consecutive messages of the
    assistant that only their reasoning separates become one."""
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else {}
        texts = [last.get("content"), message.get("content")]
        if (
            not last.get("role") == message.get("role") == "assistant"
            or "reasoning_content" not in message
            or not all(isinstance(text, str) for text in texts)
        ):
            merged.append(message)
            continue
        merged[-1] = {**last, "content": "\n".join(text for text in texts if text)}
        if calls := [*(last.get("tool_calls") or ()), *(message.get("tool_calls") or ())]:
            merged[-1]["tool_calls"] = calls
    return merged


def _normalize(message: Message, place: int, syntax: ToolCallSyntax, show_unparsed: ShowUnparsed) -> Message:
    """The message with arguments as objects, and without the key `tool_calls` if it has no calls."""
    normalized = {key: value for key, value in message.items() if key != "tool_calls"}
    if calls := message.get("tool_calls"):
        normalized["content"] = normalized.get("content") or ""  # templates append to it, or search in it
        normalized["tool_calls"] = [
            _normalize_call(call, f"messages[{place}].tool_calls[{number}]", syntax, show_unparsed)
            for number, call in enumerate(calls)
        ]
    if isinstance(normalized.get("tool_call_id"), str):
        normalized["tool_call_id"] = syntax.adapt_call_id(normalized["tool_call_id"])
    return normalized


def _normalize_call(
    call: dict[str, Any], field: str, syntax: ToolCallSyntax, show_unparsed: ShowUnparsed
) -> dict[str, Any]:
    try:
        function, call_id = call["function"], syntax.adapt_call_id(str(call.get("id", "")))
        name, arguments = function["name"], function["arguments"]
    except (KeyError, TypeError, AttributeError):
        raise InvalidRequest(f"{field} must have a function with a name and arguments", param=field) from None
    if isinstance(arguments, str):
        parsed = _parse_object(arguments)
        arguments = show_unparsed(arguments) if parsed is None else parsed
    elif not isinstance(arguments, dict) or is_nested_deeper(arguments, MAX_DEPTH):
        field = f"{field}.function.arguments"
        raise InvalidRequest(f"{field} must be a JSON object, up to {MAX_DEPTH} levels deep", param=field)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _parse_object(text: str) -> dict[str, Any] | None:
    """None: the text is no JSON object, or is nested too deeply to be rendered."""
    try:
        parsed = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) and not is_nested_deeper(parsed, MAX_DEPTH) else None


def _name_results(messages: list[Message]) -> None:
    """Add the name of the tool to each result that lacks it."""
    names = {call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls", ())}
    for message in messages:
        if message.get("role") == "tool" and "name" not in message and message.get("tool_call_id") in names:
            message["name"] = names[message["tool_call_id"]]
