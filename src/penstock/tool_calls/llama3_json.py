"""Llama 3: `{"name": …, "parameters": {…}}` as the whole answer, with or without `<|python_tag|>` before it."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.flow import Tool
from penstock.grammar.lark import LarkRules
from penstock.tool_calls.call_stream import CallStream
from penstock.tool_calls.json_calls import JsonObjectSyntax
from penstock.tool_calls.syntax import CallRules, TemplateSigns
from penstock.tool_calls.text_buffer import Malformed, Parser, TextBuffer

PYTHON_TAG = "<|python_tag|>"


class Llama3Json(JsonObjectSyntax):
    name = "llama3_json"
    signs = TemplateSigns(('{"name": function name, "parameters": ', "<|start_header_id|>"))
    opening = ""
    also_opening = (PYTHON_TAG,)
    arguments_key = "parameters"
    parallel = False
    free_text = r"([ \t\r\n]*[^{ \t\r\n](.|\n)*)?"  # an object would be a call

    def add_rules(self, rules: LarkRules, tools: Sequence[Tool], *, several: bool) -> CallRules:
        self.define_any_call(rules, tools)
        return CallRules(rules.define("calls", f"({rules.marker(PYTHON_TAG)})? any_call"))

    def skip_opening(self, buffer: TextBuffer, calls: CallStream) -> Parser[bool]:
        if (yield from buffer.skip_whitespace()) == ";" and calls.count:  # some models write several calls
            buffer.position += 1
            yield from buffer.skip_whitespace()
        if (yield from buffer.skip(PYTHON_TAG)):
            return True
        if (yield from buffer.peek()) != "{":
            raise Malformed
        return False
