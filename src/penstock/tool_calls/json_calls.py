"""Calls as JSON objects, `{"name": …, "arguments": {…}}`: one object per call, or a list of them for all calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from penstock.flow import Tool
from penstock.grammar.lark import LarkRules, lark_json, lark_literal
from penstock.tool_calls.argument_schema import close_arguments
from penstock.tool_calls.call_stream import CallStream
from penstock.tool_calls.json_reader import copy_value, expect, read_string
from penstock.tool_calls.syntax import MAX_CALLS, CallRules, ToolCallSyntax, to_json
from penstock.tool_calls.text_buffer import Malformed, Parser, TextBuffer


class JsonObjectSyntax(ToolCallSyntax):
    """opening {"name": …, "arguments": {…}} closing, for each call"""

    arguments_key: ClassVar[str] = "arguments"
    padding: ClassVar[str] = ""  # white space between the markers and the object

    def write(self, calls: Sequence[tuple[str, Any]]) -> str:
        before, behind = f"{self.opening}{self.padding}", f"{self.padding}{self.closing}"
        return self.separator.join(f"{before}{self._object(*call)}{behind}" for call in calls)

    def _object(self, name: str, arguments: Any) -> str:
        return to_json({"name": name, self.arguments_key: arguments})

    def add_rules(self, rules: LarkRules, tools: Sequence[Tool], *, several: bool) -> CallRules:
        self.define_any_call(rules, tools)
        padding = lark_literal(self.padding) if self.padding else ""
        rules.define("calls", f"{padding} any_call {padding} {rules.marker(self.closing)}")
        return CallRules("calls", self.more_calls(rules) if several else "")

    def define_call(self, rules: LarkRules, rule: str, tool: Tool) -> None:
        before = f'{{"name": {json.dumps(tool.name)}, "{self.arguments_key}": '
        rules.define(rule, f'{lark_literal(before)} {lark_json(close_arguments(tool.parameters))} "}}"')

    def read_calls(self, buffer: TextBuffer, calls: CallStream) -> Parser[None]:
        """Models that write one object sometimes write a list of them."""
        if (yield from buffer.skip_whitespace()) == "[":
            yield from _read_list(buffer, calls)
        else:
            yield from _read_object(buffer, calls)


class JsonListSyntax(JsonObjectSyntax):
    """opening [{"name": …, "arguments": {…}}, …] closing, for all calls

    A marker of `also_opening` ends with the list's bracket.
    """

    def write(self, calls: Sequence[tuple[str, Any]]) -> str:
        return f"{self.opening}[{', '.join(self._object(*call) for call in calls)}]{self.closing}"

    def add_rules(self, rules: LarkRules, tools: Sequence[Tool], *, several: bool) -> CallRules:
        self.define_any_call(rules, tools)
        more = f'("," " "? any_call){{0,{MAX_CALLS - 1}}}' if several else ""
        rules.define("rest_of_list", f'any_call {more} "]"')
        rules.define("calls", f'"[" rest_of_list {rules.marker(self.closing)}')
        return CallRules("calls", other_openings=dict.fromkeys(self.also_opening, "rest_of_list"))


def _read_list(buffer: TextBuffer, calls: CallStream) -> Parser[None]:
    yield from expect(buffer, "[")
    separator = ","
    while separator == ",":
        calls.begin()
        yield from _read_object(buffer, calls)
        separator = yield from expect(buffer, ",]")


def _read_object(buffer: TextBuffer, calls: CallStream) -> Parser[None]:
    yield from expect(buffer, "{")
    has_arguments = False
    separator = ","
    while separator == ",":
        key = yield from read_string(buffer)
        yield from expect(buffer, ":")
        if key == "name":
            calls.name((yield from read_string(buffer)))
        elif key in ("arguments", "parameters"):
            has_arguments = True
            yield from _read_arguments(buffer, calls)
        else:
            yield from copy_value(buffer, lambda _: None)
        separator = yield from expect(buffer, ",}")
    if not calls.named:
        raise Malformed
    if not has_arguments:
        calls.arguments("{}")


def _read_arguments(buffer: TextBuffer, calls: CallStream) -> Parser[None]:
    """An object; or a string that contains one, as some models write."""
    if (yield from buffer.skip_whitespace()) == '"':
        calls.arguments((yield from read_string(buffer)))
    else:
        yield from copy_value(buffer, calls.arguments)
