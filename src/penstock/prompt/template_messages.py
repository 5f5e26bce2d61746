"""Messages as a family's chat template wants them: tools, tool calls and their results above all.

Messages come in OpenAI's shape. Templates that know about tools get arguments as objects, the names of tools beside
their results, and ids they can take. For the others all of it is written into texts. Arguments that are no object are
up to the caller (`raw`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock.flow import CallSyntax, Message, Tool
from penstock.flow.tools import MAX_DEPTH, nested_deeper
from penstock.prompt.families import Family

Raw = Callable[[str], Any]
_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def as_openai(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools as templates know them."""
    return [{"type": "function", "function": _function(tool)} for tool in tools]


def for_template(
    messages: Sequence[Message], family: Family, tools: Sequence[Tool], raw: Raw, *, system_role: bool
) -> list[Message]:
    """`raw` makes of arguments that are no JSON object what the template is given for them. `system_role`: whether the
    template takes system messages."""
    shown = [_shown(message, place, family, raw) for place, message in enumerate(messages)]
    _name_results(shown)
    if family.writes_itself:
        return shown
    if family.name == "phi 4":
        return _for_phi(shown, family.calls, tools)
    plain = _plain(shown, family.calls)
    return _told(plain, _instructions(tools), system_role=system_role) if tools else plain


def join_answers(messages: Sequence[Message]) -> list[Message]:
    """For templates that show no thoughts: what only thoughts set apart is one message. Many want alternating turns."""
    joined: list[Message] = []
    for message in messages:
        last = joined[-1] if joined else {}
        texts = [last.get("content"), message.get("content")]
        if (
            not last.get("role") == message.get("role") == "assistant"
            or "reasoning_content" not in message
            or not all(isinstance(text, str) for text in texts)
        ):
            joined.append(message)
            continue
        joined[-1] = {**last, "content": "\n".join(text for text in texts if text)}
        if calls := [*(last.get("tool_calls") or ()), *(message.get("tool_calls") or ())]:
            joined[-1]["tool_calls"] = calls
    return joined


def _shown(message: Message, place: int, family: Family, raw: Raw) -> Message:
    """A message whose calls have objects for arguments. One without calls says nothing of them."""
    shown = {key: value for key, value in message.items() if key != "tool_calls"}
    if calls := message.get("tool_calls"):
        shown["content"] = shown.get("content") or ""  # templates add to it, or search in it
        shown["tool_calls"] = [
            _call(call, f"messages[{place}].tool_calls[{number}]", family, raw) for number, call in enumerate(calls)
        ]
    if family.short_ids and isinstance(shown.get("tool_call_id"), str):
        shown["tool_call_id"] = short_id(shown["tool_call_id"])
    return shown


def _call(call: dict[str, Any], where: str, family: Family, raw: Raw) -> dict[str, Any]:
    try:
        function, call_id = call["function"], str(call.get("id", ""))
        name, given = function["name"], function["arguments"]
    except (KeyError, TypeError, AttributeError):
        raise InvalidRequest(f"{where} must have a function with a name and arguments", param=where) from None
    arguments = _object(given) if isinstance(given, str) else given
    if arguments is None and isinstance(given, str):  # cut at the length limit, or what a model made of it
        arguments = raw(given)
    elif not isinstance(arguments, dict) or nested_deeper(arguments, MAX_DEPTH):
        where = f"{where}.function.arguments"
        raise InvalidRequest(f"{where} must be a JSON object, up to {MAX_DEPTH} levels deep", param=where)
    call_id = short_id(call_id) if family.short_ids else call_id
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _object(text: str) -> dict[str, Any] | None:
    """None: it is none, or one that is too deep to be written."""
    try:
        found = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) and not nested_deeper(found, MAX_DEPTH) else None


def short_id(call_id: str) -> str:
    """Nine letters and digits that stand for an id wherever it comes up."""
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    number = int.from_bytes(hashlib.sha256(call_id.encode(errors="replace")).digest()[:8])
    return "".join(_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(9))


def _name_results(messages: list[Message]) -> None:
    names = {call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls", ())}
    for message in messages:
        if message.get("role") == "tool" and "name" not in message and message.get("tool_call_id") in names:
            message["name"] = names[message["tool_call_id"]]


# --- for templates that know nothing of tools


def _plain(messages: list[Message], syntax: CallSyntax) -> list[Message]:
    """Calls as the assistant's own text, results as what the user says."""
    turns: list[Message | list[str]] = []  # a list: results in a row
    results: list[str] | None = None  # the last of those, if more may follow
    for message in messages:
        if message.get("role") == "tool":
            if results is None:
                results = []
                turns.append(results)
            results.append(f"<tool_response>\n{message.get('content')}\n</tool_response>")
            continue
        if results is not None and message.get("role") == "user" and isinstance(message.get("content"), str):
            results.append(message["content"])  # many templates want turns to alternate
        else:
            turns.append(_with_calls_written(message, syntax))
        results = None
    return [{"role": "user", "content": "\n".join(turn)} if isinstance(turn, list) else turn for turn in turns]


def _with_calls_written(message: Message, syntax: CallSyntax) -> Message:
    if "tool_calls" not in message:
        return dict(message)
    written = {key: value for key, value in message.items() if key != "tool_calls"}
    text = write_calls([call["function"] for call in message["tool_calls"]], syntax)
    written["content"] = f"{message['content']}\n{text}" if message["content"] else text
    return written


def write_calls(functions: list[dict[str, Any]], syntax: CallSyntax) -> str:
    """Calls in the shapes `object` and `list`."""
    calls = [_json({"name": each["name"], syntax.arguments: each["arguments"]}) for each in functions]
    if syntax.shape == "list":
        return f"{syntax.open}{syntax.gap}[{', '.join(calls)}]{syntax.gap}{syntax.close}"
    return syntax.between.join(f"{syntax.open}{syntax.gap}{call}{syntax.gap}{syntax.close}" for call in calls)


def _instructions(tools: Sequence[Tool]) -> str:
    listed = "\n".join(_json(_function(tool)) for tool in tools)
    return (
        "You can call tools. They are listed here, one per line, with the JSON schema of their arguments:\n"
        f"<tools>\n{listed}\n</tools>\n\n"
        "To call a tool, write its name and its arguments as JSON between tags, in exactly this form:\n"
        '<tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call>\n'
        "The result then comes to you between <tool_response> tags. Call a tool when it helps to answer; otherwise "
        "answer in your own words."
    )


def _told(messages: list[Message], text: str, *, system_role: bool) -> list[Message]:
    """The messages with this text where the model looks for instructions."""
    role = "system" if system_role else "user"
    first = next((place for place, message in enumerate(messages) if message.get("role") == role), None)
    if first is None or (system_role and first > 0):
        return [{"role": role, "content": text}, *messages]
    old = messages[first]
    joined = f"{old.get('content') or ''}\n\n{text}" if system_role else f"{text}\n\n{old.get('content') or ''}"
    return [*messages[:first], {**old, "content": joined.strip()}, *messages[first + 1 :]]


def _for_phi(messages: list[Message], syntax: CallSyntax, tools: Sequence[Tool]) -> list[Message]:
    """Phi's template shows the tools that a system message has beside its content, and takes any role."""
    shown = [_with_calls_written(message, syntax) for message in messages]
    shown = [{**message, "role": "tool_response"} if message.get("role") == "tool" else message for message in shown]
    if not tools:
        return shown
    if not shown or shown[0].get("role") != "system":
        shown.insert(0, {"role": "system", "content": ""})
    return [{**shown[0], "tools": _json([_function(tool) for tool in tools])}, *shown[1:]]


def _function(tool: Tool) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {}, **tool.parameters}
    return {"name": tool.name, "description": tool.description, "parameters": parameters}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
