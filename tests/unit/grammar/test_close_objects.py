"""Objects that say nothing of more properties have no room for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.flow import Constraint
from penstock.grammar.close_objects import MAX_DEPTH, close_objects
from penstock.grammar.compiler import Compiler
from penstock.tokenize.tokenizer import Tokenizer

A, B, CLOSED = {"properties": {"a": {}}}, {"properties": {"b": {}}}, {"additionalProperties": False}
A_CLOSED = {**A, **CLOSED}


def fresh(schema: dict[str, Any]) -> Any:
    """A copy in which nothing is shared."""
    return json.loads(json.dumps(schema))


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        ({"type": "object", **A}, {"type": "object", **A, **CLOSED}),
        ({"properties": {"x": A}}, {"properties": {"x": A_CLOSED}, **CLOSED}),
        ({"items": A}, {"items": A_CLOSED}),
        ({"prefixItems": [A], "items": [A]}, {"prefixItems": [A_CLOSED], "items": [A_CLOSED]}),
        ({"additionalProperties": A}, {"additionalProperties": A_CLOSED}),
        ({"$defs": {"x": A}, "$ref": "#/$defs/x"}, {"$defs": {"x": A_CLOSED}, "$ref": "#/$defs/x"}),
        ({"anyOf": [A, B]}, {"anyOf": [A_CLOSED, {**B, **CLOSED}]}),
        ({"oneOf": [A, {"type": "null"}]}, {"oneOf": [A_CLOSED, {"type": "null"}]}),
        ({"allOf": [A], "title": "t"}, {"allOf": [A_CLOSED], "title": "t"}),
        ({**A, "anyOf": [{"required": ["a"]}]}, {**A_CLOSED, "anyOf": [{"required": ["a"]}]}),
        ({**A, "required": ["a"]}, {**A_CLOSED, "required": ["a"]}),
        ({**A, "minProperties": 1}, {**A_CLOSED, "minProperties": 1}),
    ],
)
def test_objects_are_closed(schema: dict[str, Any], made: dict[str, Any]) -> None:
    assert close_objects(fresh(schema)) == made


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},  # any object
        {"type": "object", "properties": {}},
        {**A, "additionalProperties": True},
        {**A, "additionalProperties": {"type": "integer"}},
        {**A, "patternProperties": {"^x": {}}},
        {**A, "unevaluatedProperties": True},
        {**A, "minProperties": 3},
        {**A, "required": ["b"]},
        # Put together from parts, each of which would forbid what the others name.
        {"allOf": [A, B]},
        {**A, "allOf": [B]},
        {**A, "anyOf": [B, {"required": ["a"]}]},
        {**A, "$ref": "#/$defs/x", "$defs": {"x": B}},
        {"allOf": [{"$ref": "#/$defs/x"}, B], "$defs": {"x": {"anyOf": [{"$ref": "#/$defs/y"}]}, "y": A}},
        {"allOf": [{"properties": {"x": A}}, {"properties": {"x": B}}]},
        {"anyOf": [A], "oneOf": [B]},
        {**A, "if": {"required": ["a"]}, "then": B},
        {"properties": {"x": {"allOf": [{"$ref": "#"}, B]}, "y": A}},
        {"properties": {"x": {"allOf": [{"$ref": "#anchor"}, B]}, "y": {"$anchor": "anchor", **A}}},
        {"const": {"properties": {"a": 1}}},
        {"enum": [A], "default": A},
    ],
)
def test_some_stay_as_they_are(schema: dict[str, Any]) -> None:
    assert close_objects(fresh(schema)) == schema


def test_only_what_is_put_together_stays_open() -> None:
    schema = {"properties": {"x": {"allOf": [{"$ref": "#/$defs/x"}, B]}, "y": A}, "$defs": {"x": A, "y": A}}
    made = {"properties": {"x": schema["properties"]["x"], "y": A_CLOSED}, "$defs": {"x": A, "y": A_CLOSED}, **CLOSED}
    assert close_objects(fresh(schema)) == made


def test_depth_is_bounded() -> None:
    schema: dict[str, Any] = fresh(A)
    for _ in range(400):
        schema = {"items": schema}
    assert close_objects({"items": fresh(A)}) == {"items": A_CLOSED}
    deepest = close_objects(schema)
    for _ in range(400):
        deepest = deepest["items"]
    assert MAX_DEPTH < 400
    assert deepest == A


@pytest.mark.parametrize(
    ("extra", "text", "whole"),
    [
        ({}, '{"a": {"b": 1}}', True),
        ({}, '{"a": {"b": 1}, "c": 2}', False),
        ({}, '{"a": {"b": 1, "c": 2}}', False),
        ({"additionalProperties": True}, '{"a": {"b": 1}, "c": 2}', True),
    ],
)
def test_answers(compiler: Compiler, tokenizer_file: Path, extra: dict[str, Any], text: str, whole: bool) -> None:
    inner = {"type": "object", "properties": {"b": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"a": inner}, **extra}
    tokens = Tokenizer.load(tokenizer_file).encode(text, add_special=False)
    matcher = compiler.compile(Constraint.json_schema(schema))
    assert (matcher.validate_tokens(tokens) == len(tokens)) is whole
