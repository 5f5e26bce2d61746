"""Which of the tools' schemas calls are held to, in the notations of different families."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidRequest
from penstock.flow import Constraint, OutputFormat, Tool, ToolUse
from penstock.prompt.answer_grammar import answer_constraint
from penstock.tool_calls.argument_schema import close_arguments, enforceable_tools
from penstock.tool_calls.registry import GENERIC, SYNTAXES

GEMMA = SYNTAXES["gemma4"]
LEFT_OUT: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"type": "string", "pattern": "x"}, {"type": "string"}, "pattern"),
    ({"allOf": [{"type": "string", "format": "date"}]}, {"type": "string"}, "format"),
    ({"allOf": [{"type": "string"}, {"minLength": 1}]}, {}, "allOf"),
    ({"$ref": "https://example.org/a", "title": "t"}, {}, "$ref"),
    ({"$ref": "#/$defs/d"}, {"$ref": "#/$defs/d"}, "patternProperties"),
    ({"type": "object", "properties": {"b": {}}, "required": ["c"]}, {}, "required without properties"),
    ({"oneOf": [{"type": "string", "pattern": "x"}, {"type": "null"}]}, {}, "pattern"),
    ({"type": ["string", "null"], "pattern": "x"}, {"type": ["string", "null"]}, "pattern"),
    ({"items": {"const": 1, "type": "integer"}, "uniqueItems": True}, {}, "uniqueItems"),
    ({"type": "string", "minLength": 2}, {"type": "string"}, "minLength"),
    (False, {}, "false"),  # type: ignore[list-item]
]


def passed(constraint: Constraint) -> None: ...


@pytest.mark.parametrize(("inner", "made", "word"), LEFT_OUT)
def test_what_gemmas_notation_cannot_say_is_left_out(inner: Any, made: Any, word: str) -> None:
    defined = {"d": {"type": "object", "patternProperties": {"^x": {}}}} if word == "patternProperties" else {}
    tool = Tool(name="f", parameters={"properties": {"a": inner}, "$defs": defined})
    use, warnings = enforceable_tools(ToolUse(tools=(tool,)), GEMMA, lambda mark: None, passed)
    assert warnings == (f"calls of the tool f are not held to {word} of its parameters",)
    if made:
        assert use.tools[0].parameters["properties"]["a"] == made
    answer_constraint(
        OutputFormat(tool_calls="gemma4"), use, None, lambda mark: None
    )  # which refuses what it does not know


def test_bounds_of_strings_stay_where_quotes_are_tokens() -> None:
    tool = Tool(name="f", parameters={"properties": {"a": {"type": "string", "minLength": 2}}})
    assert enforceable_tools(ToolUse(tools=(tool,)), GEMMA, lambda mark: 7, passed) == (ToolUse(tools=(tool,)), ())


def test_a_strict_tool_stays_as_it_is() -> None:
    tool = Tool(name="f", parameters={"properties": {"a": {"type": "string", "pattern": "x"}}}, strict=True)
    use, warnings = enforceable_tools(ToolUse(tools=(tool,)), GEMMA, lambda mark: None, passed)
    assert (use.tools, warnings) == ((tool,), ())
    with pytest.raises(InvalidRequest, match="pattern"):
        answer_constraint(OutputFormat(tool_calls="gemma4"), use, None, lambda mark: None)


def test_the_tools_of_one_request_are_not_checked_without_end() -> None:
    checked: list[Constraint] = []
    tools = tuple(Tool(name=f"f{number}", parameters={}) for number in range(100))
    with pytest.raises(InvalidRequest, match="more than 30 s to check") as caught:
        enforceable_tools(ToolUse(tools=tools), GEMMA, lambda mark: 7, checked.append, clock=lambda: 4.0 * len(checked))
    assert len(checked) == 8
    assert caught.value.param == "tools[8].function.parameters"


def test_arguments_that_a_relaxed_schema_left_open_stay_open() -> None:
    def check(constraint: Constraint) -> None:
        if "propertyNames" in constraint.source:
            raise InvalidRequest("no", param="x")

    tool = Tool(name="f", parameters={"properties": {"a": {}}, "propertyNames": {"pattern": "a"}})
    use, _ = enforceable_tools(ToolUse(tools=(tool,)), GENERIC, lambda mark: None, check)
    assert close_arguments(use.tools[0].parameters) == {
        "type": "object", "properties": {"a": {}}, "additionalProperties": True,
    }  # fmt: skip


CLOSED = {"additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        ({}, {"type": "object", "properties": {}, "additionalProperties": False}),
        ({"additionalProperties": True}, {"type": "object", "additionalProperties": True}),
        ({"required": ["a"]}, {"type": "object", "required": ["a"]}),
        ({"required": 5, "properties": 5}, {"type": "object", "required": 5, "properties": 5} | CLOSED),
        ({"anyOf": [{"required": ["a"]}]}, {"type": "object", "anyOf": [{"required": ["a"]}]}),
    ],
)
def test_arguments_have_no_room_for_more_unless_the_schema_says_so(
    schema: dict[str, Any], made: dict[str, Any]
) -> None:
    assert close_arguments(schema) == made
