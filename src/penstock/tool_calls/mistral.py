"""Mistral: `[TOOL_CALLS]name[ARGS]{…}`, before 2025 `[TOOL_CALLS][{"name": …, "arguments": {…}}]`.

Chat templates accept call ids of nine letters and digits only.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, ClassVar

from penstock.flow import Tool
from penstock.grammar.lark import LarkRules, lark_json, lark_literal
from penstock.tool_calls.argument_schema import close_arguments
from penstock.tool_calls.call_stream import CallStream
from penstock.tool_calls.json_calls import JsonListSyntax
from penstock.tool_calls.json_reader import copy_value
from penstock.tool_calls.named_calls import NamedCallSyntax
from penstock.tool_calls.syntax import TemplateSigns, read_until, to_json
from penstock.tool_calls.text_buffer import Parser, TextBuffer

_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def short_id(call_id: str) -> str:
    """Nine letters and digits, the same for the same id."""
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    number = int.from_bytes(hashlib.sha256(call_id.encode(errors="replace")).digest()[:8])
    return "".join(_ALPHABET[number // len(_ALPHABET) ** place % len(_ALPHABET)] for place in range(9))


class Mistral(NamedCallSyntax):
    name = "mistral"
    signs = TemplateSigns(("[TOOL_CALLS]", "[ARGS]"), lacks=("[CALL_ID]",))
    opening = "[TOOL_CALLS]"
    arguments_marker = "[ARGS]"
    inner_markers: ClassVar[tuple[str, ...]] = ("[ARGS]",)

    def adapt_call_id(self, call_id: str) -> str:
        return short_id(call_id)


class MistralWithIds(Mistral):
    """`[TOOL_CALLS]name[CALL_ID]abcDEF123[ARGS]{…}`; the id is the model's own and is not passed on."""

    name = "mistral_with_ids"
    signs = TemplateSigns(("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"))
    id_marker = "[CALL_ID]"
    inner_markers = ("[CALL_ID]", "[ARGS]")

    def _call(self, name: str, arguments: Any) -> str:  # any id will do
        return f"{self.opening}{name}{self.id_marker}{short_id(name)}{self.arguments_marker}{to_json(arguments)}"

    def define_call(self, rules: LarkRules, rule: str, tool: Tool) -> None:
        call_id = f"{rules.marker(self.id_marker)} /[a-zA-Z0-9]{{9}}/"
        arguments = f"{rules.marker(self.arguments_marker)} {lark_json(close_arguments(tool.parameters))}"
        rules.define(rule, f"{lark_literal(tool.name)} {call_id} {arguments}")

    def read_calls(self, buffer: TextBuffer, calls: CallStream) -> Parser[None]:
        name = yield from read_until(buffer, [self.id_marker, self.arguments_marker])
        yield from read_until(buffer, [self.arguments_marker])
        yield from buffer.skip(self.arguments_marker)
        calls.name(name.strip())
        yield from copy_value(buffer, calls.arguments)


class MistralList(JsonListSyntax):
    name = "mistral_list"
    signs = TemplateSigns(("[TOOL_CALLS]",), lacks=("[ARGS]",))
    opening = "[TOOL_CALLS]"

    def adapt_call_id(self, call_id: str) -> str:
        return short_id(call_id)
