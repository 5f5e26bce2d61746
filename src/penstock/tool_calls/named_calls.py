"""Calls as a name and a JSON object behind it: `[TOOL_CALLS]name[ARGS]{…}`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from penstock.flow import Tool
from penstock.grammar.lark import LarkRules, lark_json, lark_literal
from penstock.tool_calls.argument_schema import close_arguments
from penstock.tool_calls.call_stream import CallStream
from penstock.tool_calls.json_reader import copy_value
from penstock.tool_calls.syntax import ToolCallSyntax, read_until, to_json
from penstock.tool_calls.text_buffer import Parser, TextBuffer


class NamedCallSyntax(ToolCallSyntax):
    """opening name arguments_marker {…} closing, for each call"""

    arguments_marker: ClassVar[str]

    def write(self, calls: Sequence[tuple[str, Any]]) -> str:
        return self.separator.join(self._call(*call) for call in calls)

    def _call(self, name: str, arguments: Any) -> str:
        return f"{self.opening}{name}{self.arguments_marker}{to_json(arguments)}{self.closing}"

    def define_call(self, rules: LarkRules, rule: str, tool: Tool) -> None:
        arguments = lark_json(close_arguments(tool.parameters))
        rules.define(rule, f"{lark_literal(tool.name)} {rules.marker(self.arguments_marker)} {arguments}")

    def read_calls(self, buffer: TextBuffer, calls: CallStream) -> Parser[None]:
        name = yield from read_until(buffer, [self.arguments_marker])
        yield from buffer.skip(self.arguments_marker)
        calls.name(name.strip())
        yield from copy_value(buffer, calls.arguments)
