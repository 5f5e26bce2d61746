"""Schemas of tools that are not strict: what cannot be enforced is left out, and named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvalidRequest
from penstock.flow import Constraint
from penstock.grammar.compiler import Compiler
from penstock.grammar.unenforceable_keywords import drop_unenforceable
from penstock.tokenize.tokenizer import Tokenizer

LOOK_AHEAD = "^(?=.*[0-9]).+$"
STRING, INTEGER = {"type": "string"}, {"type": "integer"}


def with_a(inner: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": inner}, "required": ["a"], "additionalProperties": False, **more}


def relax(compiler: Compiler, schema: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    return drop_unenforceable(schema, lambda one: compiler.compile(Constraint.json_schema(one)) and None)


@pytest.mark.parametrize(
    ("schema", "left_out", "made"),
    [
        # Zod's records, and sets of pydantic.
        (
            with_a({"type": "object", "propertyNames": STRING, "additionalProperties": INTEGER}),
            ["propertyNames"],
            with_a({"type": "object", "additionalProperties": INTEGER}),
        ),
        (
            with_a({"type": "array", "items": STRING, "uniqueItems": True}),
            ["uniqueItems"],
            with_a({"type": "array", "items": STRING}),
        ),
        (with_a({**STRING, "format": "password"}), ["format password"], with_a(STRING)),
        (with_a({**INTEGER, "format": "int64", "not": {"const": 3}}), ["format int64", "not"], with_a(INTEGER)),
        (with_a({**STRING, "pattern": LOOK_AHEAD, "minLength": 2}), ["pattern"], with_a({**STRING, "minLength": 2})),
        (with_a({**STRING, "pattern": r"(a)\1"}), ["pattern"], with_a(STRING)),
        (
            with_a({"type": "array", "items": INTEGER, "contains": {"const": 1}, "minContains": 2}),
            ["contains", "minContains"],
            with_a({"type": "array", "items": INTEGER}),
        ),
        (with_a(INTEGER, dependentRequired={"a": ["b"]}), ["dependentRequired"], with_a(INTEGER)),
        (
            {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "minProperties": 2},
            ["minProperties"],
            {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}},
        ),
        (
            {"type": "object", "properties": {"a": INTEGER}, "minProperties": 3},
            ["minProperties"],
            {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": True},
        ),
        (
            with_a({"oneOf": [{"type": "number"}, INTEGER]}),
            ["oneOf (taken as anyOf)"],
            with_a({"anyOf": [{"type": "number"}, INTEGER]}),
        ),
        (
            with_a({"oneOf": [{"type": "number"}, INTEGER], "anyOf": [{"minimum": 3}]}),
            ["oneOf (taken as anyOf)"],
            with_a({"anyOf": [{"minimum": 3}], "allOf": [{"anyOf": [{"type": "number"}, INTEGER]}]}),
        ),
        (
            with_a({"$ref": "https://a.org/x"}),
            ["$ref to another document"],
            with_a({"additionalProperties": True}),
        ),
        (
            with_a({"type": "object", "if": {"required": ["b"]}, "then": {"required": ["c"]}}),
            ["if", "then"],
            with_a({"type": "object", "additionalProperties": True}),
        ),
        (
            with_a({"type": "object", "patternProperties": {LOOK_AHEAD: INTEGER, "^x": STRING}}),
            ["patternProperties"],
            with_a({"type": "object", "patternProperties": {"^x": STRING}, "additionalProperties": True}),
        ),
        # At any depth.
        (
            with_a({"$ref": "#/$defs/b"}, **{"$defs": {"b": {"anyOf": [{"items": [{"not": STRING}]}]}}}),
            ["not"],
            with_a({"$ref": "#/$defs/b"}, **{"$defs": {"b": {"anyOf": [{"items": [{}]}]}}}),
        ),
        # Closed in words that are not enforced: closed in those that are.
        (
            {"type": "object", "properties": {"a": {**INTEGER, "not": {"const": 1}}}, "unevaluatedProperties": False},
            ["not"],
            {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": False},
        ),
        (
            {"type": "object", "properties": {"a": {**INTEGER, "not": {}}, "b": {"not": STRING}}},
            ["not"],
            {"type": "object", "properties": {"a": False, "b": {}}},
        ),
        # A property may be called like a keyword.
        (
            {"type": "object", "properties": {"not": INTEGER, "format": {**STRING, "format": "x"}}},
            ["format x"],
            {"type": "object", "properties": {"not": INTEGER, "format": STRING}},
        ),
    ],
)
def test_what_cannot_be_enforced_is_left_out(
    compiler: Compiler, schema: dict[str, Any], left_out: list[str], made: dict[str, Any]
) -> None:
    assert relax(compiler, schema) == (made, left_out)


@pytest.mark.parametrize(
    "schema",
    [
        with_a({**STRING, "format": "date"}),
        with_a({**STRING, "pattern": "^[a-z]+$"}),
        with_a({"oneOf": [STRING, INTEGER]}),
        with_a(INTEGER, minProperties=1),
        {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "minProperties": 1, "maxProperties": 1},
    ],
)
def test_what_can_be_enforced_stays(compiler: Compiler, schema: dict[str, Any]) -> None:
    assert relax(compiler, schema) == (schema, [])


def test_what_can_be_enforced_stays_beside_what_cannot(compiler: Compiler) -> None:
    kept = {"a": {**STRING, "format": "date"}, "b": {**STRING, "pattern": "^x+$"}, "c": {"oneOf": [STRING, INTEGER]}}
    schema = {"type": "object", "properties": {**kept, "d": {"not": STRING}}, "minProperties": 2, "required": [*kept]}
    assert relax(compiler, schema) == ({**schema, "properties": {**kept, "d": {}}}, ["not"])


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (with_a({"type": "strnig"}), "Invalid type"),
        (with_a({"type": "array", "minItems": 3, "maxItems": 2, "uniqueItems": True}), "Unsatisfiable"),
        (with_a({"$ref": "#/$defs/nothing"}), "does not exist"),
        ({"type": "object", "not": {}}, "not"),
    ],
)
def test_a_schema_that_is_wrong_in_itself_is_refused(compiler: Compiler, schema: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        relax(compiler, schema)


def test_the_given_schema_is_not_changed(compiler: Compiler) -> None:
    schema = with_a({**STRING, "format": "x"})
    relax(compiler, schema)
    assert schema == with_a({**STRING, "format": "x"})


def test_a_relaxed_schema_still_binds(compiler: Compiler, tokenizer_file: Path) -> None:
    made, _ = relax(compiler, with_a({"type": "array", "items": INTEGER, "uniqueItems": True}))
    tokenizer = Tokenizer.load(tokenizer_file)
    for text, whole in (('{"a": [1, 1]}', True), ('{"a": ["x"]}', False)):
        matcher = compiler.compile(Constraint.json_schema(made))
        tokens = tokenizer.encode(text, add_special=False)
        assert (matcher.validate_tokens(tokens) == len(tokens)) is whole
