"""Nemotron: `<TOOLCALL>[{"name": …, "arguments": {…}}]</TOOLCALL>`."""

from __future__ import annotations

from penstock.tool_calls.json_calls import JsonListSyntax
from penstock.tool_calls.syntax import TemplateSigns


class Nemotron(JsonListSyntax):
    name = "nemotron"
    signs = TemplateSigns(("<TOOLCALL>", "</TOOLCALL>"))
    opening = "<TOOLCALL>"
    closing = "</TOOLCALL>"
