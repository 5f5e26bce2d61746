"""Schemas in Gemma's notation of arguments."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.marker_vocabulary import Vocabularies
from penstock.errors import InvalidRequest
from penstock.flow import OutputFormat, Tool, ToolUse
from penstock.prompt.answer_grammar import answer_constraint
from penstock.tool_calls.registry import output_markers


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "string", "pattern": "x"}}},
        {"properties": {"a": {"allOf": [{"type": "string"}]}}},
        {"properties": {}, "required": ["a"]},
        {"properties": {"a": {"$ref": "https://example.org/a"}}},
    ],
)
def test_what_gemmas_notation_cannot_say_is_refused(schema: dict[str, Any]) -> None:
    output_format = OutputFormat(tool_calls="gemma4")
    asked = ToolUse(tools=(Tool(name="f", parameters=schema),))
    with pytest.raises(InvalidRequest, match="not supported in this model's notation") as caught:
        answer_constraint(output_format, asked, None, lambda mark: None)
    assert caught.value.param == "tools"


def test_a_schema_in_gemmas_notation(vocabularies: Vocabularies) -> None:
    schema = {
        "type": "object",
        "properties": {
            "node": {"$ref": "#/$defs/node"},
            "any": {},
            "word": {"type": "string", "minLength": 2, "maxLength": 3},
            "some": {"type": "array", "items": {"enum": ["a", 1]}, "minItems": 1, "maxItems": 2},
        },
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
    }
    output_format = OutputFormat(tool_calls="gemma4")
    words = vocabularies.of(output_markers(output_format))
    constraint = answer_constraint(
        output_format, ToolUse(tools=(Tool(name="f", parameters=schema),)), None, words.tokenizer.mark
    )

    def takes(arguments: str) -> bool:
        text = arguments.replace("'", '<|"|>')
        return bool(words.takes(constraint, f"<|tool_call>call:f{text}<tool_call|>"))

    for right in ("{}", "{node:{next:{next:{}}}}", "{any:['x',{y:1.5,z:null}]}", "{word:'abc'}", "{some:['a',1]}"):
        assert takes(right), right
    for wrong in ("{", "{a:1}", "{word:'a'}", "{word:'abcd'}", "{some:[]}", "{some:['b']}", "{node:1}", "{word:abc}"):
        assert not takes(wrong), wrong
