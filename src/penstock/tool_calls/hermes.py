"""Hermes, and Qwen 2.5 and 3, Granite 4 and many more: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

from __future__ import annotations

from typing import ClassVar

from penstock.tool_calls.json_calls import JsonObjectSyntax
from penstock.tool_calls.syntax import TemplateSigns


class Hermes(JsonObjectSyntax):
    name = "hermes"
    signs: ClassVar[TemplateSigns | None] = TemplateSigns(
        ("<tool_call>", "</tool_call>", '"arguments'),
        lacks=("<function=", "<arg_key>", "<parameter", "<tool_calls>"),
    )
    opening = "<tool_call>"
    closing = "</tool_call>"
    padding = "\n"
    separator = "\n"
