"""Gemma 4 and FunctionGemma: `<|tool_call>call:weather{city:<|"|>Oslo<|"|>,days:2}<tool_call|>`.

Arguments are JSON but for keys without quotes, and quotes of the model's own around strings, which have no escapes.
`gemma_schema` has the grammar of arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from penstock.flow import Tool
from penstock.grammar.lark import LarkRules, TokenOf, lark_literal
from penstock.tool_calls import gemma_schema
from penstock.tool_calls.argument_schema import close_arguments
from penstock.tool_calls.call_stream import CallStream
from penstock.tool_calls.json_reader import Sink, expect
from penstock.tool_calls.syntax import TemplateSigns, ToolCallSyntax, read_until, to_json
from penstock.tool_calls.text_buffer import Malformed, Parser, TextBuffer, Truncated, overlap

MAX_DEPTH = 64
_PREFIX = "call:"
_PYTHON_NAMES = {"None": "null", "True": "true", "False": "false"}  # that some templates write, and models after them
_KEY_END = re.compile(r"[:,{}\[\]]")
_SCALAR_END = re.compile(r"[,}\]]")


class GemmaSyntax(ToolCallSyntax):
    quote: ClassVar[str]  # before and behind a string

    def write(self, calls: Sequence[tuple[str, Any]]) -> str:
        return self.separator.join(
            f"{self.opening}{_PREFIX}{name}{self._value(arguments)}{self.closing}" for name, arguments in calls
        )

    def _value(self, value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ",".join(f"{key}:{self._value(inner)}" for key, inner in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(self._value(inner) for inner in value) + "]"
        return f"{self.quote}{value}{self.quote}" if isinstance(value, str) else to_json(value)

    def drop_inexpressible(self, schema: dict[str, Any], token_of: TokenOf) -> tuple[dict[str, Any], set[str]]:
        return gemma_schema.drop_inexpressible(schema, bounded_strings=token_of(self.quote) is not None)

    def define_call(self, rules: LarkRules, rule: str, tool: Tool) -> None:
        arguments = f"{rule}_arguments"
        rules.define(rule, f"{lark_literal(_PREFIX + tool.name)} {arguments}")
        schema = close_arguments(tool.parameters)
        rules.lines += gemma_schema.rules_of_schema(arguments, schema, rules.marker(self.quote))

    def read_calls(self, buffer: TextBuffer, calls: CallStream) -> Parser[None]:
        name = yield from read_until(buffer, ["{"])
        calls.name(name.strip().removeprefix(_PREFIX))
        yield from _read_object(buffer, self.quote, calls.arguments)


class Gemma4(GemmaSyntax):
    name = "gemma4"
    signs = TemplateSigns(("<|tool_call>", '<|"|>'))
    opening = "<|tool_call>"
    closing = "<tool_call|>"
    quote = '<|"|>'
    inner_markers = (quote,)


class FunctionGemma(GemmaSyntax):
    name = "functiongemma"
    signs = TemplateSigns(("<start_function_call>", "<escape>"))
    opening = "<start_function_call>"
    closing = "<end_function_call>"
    quote = "<escape>"
    inner_markers = (quote,)


# --- the parser of arguments: passes them on as JSON


def _read_object(buffer: TextBuffer, quote: str, sink: Sink, depth: int = 0) -> Parser[None]:
    yield from expect(buffer, "{")
    sink("{")
    if (yield from _read_end(buffer, "}", sink)):
        return
    separator = ","
    while separator == ",":
        yield from buffer.skip_whitespace()
        quoted = yield from buffer.skip(quote)
        key = (yield from _read_until_match(buffer, _KEY_END)).strip()
        sink(to_json(key.removesuffix(quote) if quoted else key) + ": ")
        yield from expect(buffer, ":")
        yield from _read_value(buffer, quote, sink, depth + 1)
        separator = yield from expect(buffer, ",}")
        sink(", " if separator == "," else "}")


def _read_list(buffer: TextBuffer, quote: str, sink: Sink, depth: int) -> Parser[None]:
    yield from expect(buffer, "[")
    sink("[")
    if (yield from _read_end(buffer, "]", sink)):
        return
    separator = ","
    while separator == ",":
        yield from _read_value(buffer, quote, sink, depth + 1)
        separator = yield from expect(buffer, ",]")
        sink(", " if separator == "," else "]")


def _read_value(buffer: TextBuffer, quote: str, sink: Sink, depth: int) -> Parser[None]:
    if depth > MAX_DEPTH:
        raise Malformed
    first = yield from buffer.skip_whitespace()
    if (yield from buffer.skip(quote)):
        yield from _read_string(buffer, quote, sink)
    elif first == "{":
        yield from _read_object(buffer, quote, sink, depth)
    elif first == "[":
        yield from _read_list(buffer, quote, sink, depth)
    else:
        word = (yield from _read_until_match(buffer, _SCALAR_END)).strip()
        word = _PYTHON_NAMES.get(word, word)
        sink(word if _is_json(word) else to_json(word))


def _read_string(buffer: TextBuffer, quote: str, sink: Sink) -> Parser[None]:
    """From behind the opening quote to behind the closing one."""
    sink('"')
    while (end := buffer.text.find(quote, buffer.position)) < 0:
        safe = len(buffer.text) - overlap(buffer.rest, (quote,))
        sink(to_json(buffer.take(safe))[1:-1])
        if buffer.ended:
            raise Truncated
        yield
    sink(to_json(buffer.take(end))[1:-1] + '"')
    buffer.position += len(quote)


def _read_until_match(buffer: TextBuffer, end: re.Pattern[str]) -> Parser[str]:
    while (found := end.search(buffer.text, buffer.position)) is None:
        if buffer.ended:
            raise Truncated
        yield
    return buffer.take(found.start())


def _read_end(buffer: TextBuffer, bracket: str, sink: Sink) -> Parser[bool]:
    if (yield from buffer.skip_whitespace()) != bracket:
        return False
    buffer.position += 1
    sink(bracket)
    return True


def _is_json(word: str) -> bool:
    try:
        json.loads(word)
    except (ValueError, RecursionError):
        return False
    return word not in ("NaN", "Infinity", "-Infinity")
