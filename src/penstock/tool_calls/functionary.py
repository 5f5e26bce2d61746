"""Functionary 3.1: `<function=name>{…}</function>`."""

from __future__ import annotations

from penstock.tool_calls.named_calls import NamedCallSyntax
from penstock.tool_calls.syntax import TemplateSigns


class Functionary(NamedCallSyntax):
    name = "functionary"
    signs = TemplateSigns(("<function=", "</function>", "<|start_header_id|>"))
    opening = "<function="
    closing = "</function>"
    arguments_marker = ">"
    inner_markers = (">",)
