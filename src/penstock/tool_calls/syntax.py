"""The interface of a tool-call syntax: everything Penstock does with the calls of one family of models."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from typing import Any, ClassVar, NamedTuple

from penstock.flow import Message, Tool
from penstock.grammar.lark import LarkRules, TokenOf, lark_literal
from penstock.tool_calls.call_stream import CallStream
from penstock.tool_calls.text_buffer import Malformed, Parser, TextBuffer, Truncated, find_first

MAX_CALLS = 16  # of one response: a model that loses track repeats calls without end
MAX_NAME_LENGTH = 1024  # characters that are searched for the end of a name


class TemplateSigns(NamedTuple):
    """What the chat templates of a family have in common."""

    contains: tuple[str, ...]
    lacks: tuple[str, ...] = ()
    uses_tools: bool = True  # the template reads the variable `tools`

    def match(self, source: str, variables: Set[str]) -> bool:
        source = source.replace('\\"', '"')
        return (
            all(sign in source for sign in self.contains)
            and not any(sign in source for sign in self.lacks)
            and (not self.uses_tools or "tools" in variables)
        )


class CallRules(NamedTuple):
    """Lark expressions for the calls of one response."""

    first: str  # what follows the opening marker of the first call, up to and including the closing marker
    more: str = ""  # further calls with their markers
    other_openings: Mapping[str, str] = {}  # what follows each marker of `also_opening`


class ToolCallSyntax(ABC):
    """Stateless: one instance of each is in the registry."""

    name: ClassVar[str]
    signs: ClassVar[TemplateSigns | None] = None  # None: no chat template is recognised as this one
    opening: ClassVar[str]  # marker before a call; "": a call is a response that begins with the call itself
    closing: ClassVar[str] = ""  # marker behind a call
    also_opening: ClassVar[tuple[str, ...]] = ()  # markers that models write instead of `opening`
    inner_markers: ClassVar[tuple[str, ...]] = ()  # within a call
    separator: ClassVar[str] = ""  # between two calls
    parallel: ClassVar[bool] = True  # one response may have several calls
    template_renders_tools: ClassVar[bool] = True  # and calls and results; else `adapt_messages` writes them as text
    free_text: ClassVar[str] = r"(.|\n)*"  # regular expression of an answer that is no call

    @property
    def markers(self) -> tuple[str, ...]:
        markers = (self.opening, self.closing, *self.also_opening, *self.inner_markers)
        return tuple(marker for marker in markers if marker)

    # --- into the prompt

    def adapt_call_id(self, call_id: str) -> str:
        """An id that the chat template accepts; the same for the same id."""
        return call_id

    def adapt_messages(self, messages: list[Message], tools: Sequence[Tool], *, system_role: bool) -> list[Message]:
        """The messages as the chat template takes them. `system_role`: it takes system messages."""
        return messages

    @abstractmethod
    def write(self, calls: Sequence[tuple[str, Any]]) -> str:
        """Calls, each a name and its arguments, as the model writes them."""

    def write_calls_as_text(self, message: Message) -> Message:
        """The message with its calls at the end of its content."""
        if "tool_calls" not in message:
            return dict(message)
        plain = {key: value for key, value in message.items() if key != "tool_calls"}
        functions = [call["function"] for call in message["tool_calls"]]
        text = self.write([(function["name"], function["arguments"]) for function in functions])
        plain["content"] = f"{message['content']}\n{text}" if message["content"] else text
        return plain

    # --- the grammar

    def drop_inexpressible(self, schema: dict[str, Any], token_of: TokenOf) -> tuple[dict[str, Any], set[str]]:
        """The schema of arguments without the keywords that this syntax cannot express, and their names."""
        return schema, set()

    def add_rules(self, rules: LarkRules, tools: Sequence[Tool], *, several: bool) -> CallRules:
        """Define rules for calls of these tools."""
        self.define_any_call(rules, tools)
        rules.define("calls", f"any_call {rules.marker(self.closing)}")
        return CallRules("calls", self.more_calls(rules) if several else "")

    def define_any_call(self, rules: LarkRules, tools: Sequence[Tool]) -> None:
        names = [f"call_{number}" for number in range(len(tools))]
        for name, tool in zip(names, tools, strict=True):
            self.define_call(rules, name, tool)
        rules.define("any_call", " | ".join(names))

    def more_calls(self, rules: LarkRules) -> str:
        separator = lark_literal(self.separator) if self.separator else ""
        return f"({separator} {rules.marker(self.opening)} calls){{0,{MAX_CALLS - 1}}}"

    @abstractmethod
    def define_call(self, rules: LarkRules, rule: str, tool: Tool) -> None:
        """Define the rule of a call of this tool, without its opening and closing markers."""

    # --- the parser

    def skip_opening(self, buffer: TextBuffer, calls: CallStream) -> Parser[bool]:
        """Where `opening` is empty: skip what stands before a call at this place. Returns whether it is certain that a
        call follows; raises Malformed where none does."""
        raise NotImplementedError

    def read(self, buffer: TextBuffer, calls: CallStream) -> Parser[None]:
        """Read from behind the opening marker to behind the closing one. Raises Malformed where the text is no call,
        and Truncated where it ends within one."""
        calls.begin()
        yield from self.read_calls(buffer, calls)
        if self.closing:
            yield from buffer.skip_whitespace()
            closed = yield from buffer.skip(self.closing)
            if not closed and buffer.ended and self.closing.startswith(buffer.rest):
                raise Truncated

    @abstractmethod
    def read_calls(self, buffer: TextBuffer, calls: CallStream) -> Parser[None]:
        """Read what stands between the markers."""


def read_until(buffer: TextBuffer, markers: Sequence[str]) -> Parser[str]:
    """Read what stands before the first of these markers."""
    while (found := find_first(buffer.text, markers, buffer.position)) is None:
        if buffer.ended:
            raise Truncated
        if len(buffer.text) - buffer.position > MAX_NAME_LENGTH:
            raise Malformed
        yield
    return buffer.take(found[0])


def describe_tool(tool: Tool) -> dict[str, Any]:
    """A tool in OpenAI's shape, with all keys that chat templates look for."""
    parameters = {"type": "object", "properties": {}, **tool.parameters}
    return {"name": tool.name, "description": tool.description, "parameters": parameters}


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
