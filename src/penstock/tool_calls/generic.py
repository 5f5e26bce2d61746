"""Models whose chat template has no tools, or renders them in an unknown way: the syntax of Hermes, explained in plain
text. Calls become text of the assistant, results text of the user."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.flow import Message, Tool
from penstock.tool_calls.hermes import Hermes
from penstock.tool_calls.syntax import describe_tool, to_json


class Generic(Hermes):
    name = "generic"
    signs = None
    template_renders_tools = False

    def adapt_messages(self, messages: list[Message], tools: Sequence[Tool], *, system_role: bool) -> list[Message]:
        plain = self._write_as_text(messages)
        return _add_instructions(plain, _instructions(tools), system_role=system_role) if tools else plain

    def _write_as_text(self, messages: list[Message]) -> list[Message]:
        """Consecutive results, and the user's message behind them, are one turn: many templates require alternation."""
        turns: list[Message | list[str]] = []  # a list: texts of a user's turn
        results: list[str] | None = None  # the texts of the last turn, if more results may follow
        for message in messages:
            if message.get("role") == "tool":
                if results is None:
                    results = []
                    turns.append(results)
                results.append(f"<tool_response>\n{message.get('content')}\n</tool_response>")
                continue
            if results is not None and message.get("role") == "user" and isinstance(message.get("content"), str):
                results.append(message["content"])
            else:
                turns.append(self.write_calls_as_text(message))
            results = None
        return [{"role": "user", "content": "\n".join(turn)} if isinstance(turn, list) else turn for turn in turns]


def _instructions(tools: Sequence[Tool]) -> str:
    listed = "\n".join(to_json(describe_tool(tool)) for tool in tools)
    return (
        "You can call tools. They are listed here, one per line, with the JSON schema of their arguments:\n"
        f"<tools>\n{listed}\n</tools>\n\n"
        "To call a tool, write its name and its arguments as JSON between tags, in exactly this form:\n"
        '<tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call>\n'
        "The result then comes to you between <tool_response> tags. Call a tool when it helps to answer; otherwise "
        "answer in your own words."
    )


def _add_instructions(messages: list[Message], text: str, *, system_role: bool) -> list[Message]:
    """Behind the system message, or before the first message of the user where the template takes no system message."""
    role = "system" if system_role else "user"
    first = next((place for place, message in enumerate(messages) if message.get("role") == role), None)
    if first is None or (system_role and first > 0):
        return [{"role": role, "content": text}, *messages]
    old = messages[first]
    joined = f"{old.get('content') or ''}\n\n{text}" if system_role else f"{text}\n\n{old.get('content') or ''}"
    return [*messages[:first], {**old, "content": joined.strip()}, *messages[first + 1 :]]
