"""Parts of a grammar in Lark's notation, as llguidance reads it.

White space in JSON is bounded: a model that loses track writes white space without end. Between two symbols there may
be one or two blanks, a tab, or a line break with up to 32 blanks behind it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from penstock.grammar.close_objects import close_objects
from penstock.grammar.no_op_keywords import drop_no_op_keywords

TokenOf = Callable[[str], int | None]  # the token of a marker, if the vocabulary has one

# Overrides what a schema itself says under "x-guidance": `lenient` would silently drop unsupported keywords.
JSON_OPTIONS: dict[str, Any] = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": r"( {1,2}|\t|\r?\n[ \t]{0,32})",
    "coerce_one_of": False,
    "lenient": False,
    "json_allow_general_unicode_escapes": False,
}


def lark_literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def lark_json(schema: dict[str, Any]) -> str:
    """An expression for a JSON value of this schema."""
    plain = close_objects(drop_no_op_keywords(json.loads(json.dumps(schema))))
    return "%json " + json.dumps({**plain, "x-guidance": JSON_OPTIONS}, ensure_ascii=False)


def lark_regex(source: str) -> str:
    """A regular expression between slashes, on one line."""
    escaped = {"/": r"\/", "\n": r"\n"}
    return "/" + re.sub(r"\\.|/|\n", lambda found: escaped.get(found[0], found[0]), source, flags=re.DOTALL) + "/"


class LarkRules:
    """A grammar under construction, for a vocabulary in which some markers are single tokens."""

    def __init__(self, token_of: TokenOf) -> None:
        self.token_of = token_of
        self.lines: list[str] = []

    def define(self, name: str, body: str) -> str:
        """Add a rule or a terminal; return its name."""
        self.lines.append(f"{name}: {body}")
        return name

    def marker(self, text: str) -> str:
        """An expression for a marker as the model writes it: its token, or its letters."""
        if not text:
            return ""
        token = self.token_of(text)
        return lark_literal(text) if token is None else f"<[{token}]>"

    def up_to(self, text: str, marker: str) -> str:
        """A rule for the terminal `text` and the marker behind it, written as its token or letter by letter."""
        rule = f"upto_{len(self.lines)}"
        token = self.token_of(marker)
        self.define(f"{rule}_spelt[lazy]", f"{text} {lark_literal(marker)}")
        if token is None:
            return f"{rule}_spelt"
        return self.define(rule, f"{text} <[{token}]> | {rule}_spelt")
