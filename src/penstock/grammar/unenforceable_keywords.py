"""Removes keywords that cannot be enforced from a JSON schema: for tools whose client did not ask for strict arguments.

The result allows more, never less. The compiler decides whether a pattern or a format can be enforced.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from penstock.errors import InvalidRequest

IsEnforceable = Callable[[dict[str, Any]], bool]  # whether the compiler accepts this schema

_NEVER = (
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "propertyNames",
    "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties", "unevaluatedItems",
    "$dynamicRef", "$recursiveRef",
)  # fmt: skip
# An object with one of these may have properties that it does not name, and must after the keyword is removed.
_OPEN_ENDED = (
    "if", "propertyNames", "dependentSchemas", "dependencies", "unevaluatedProperties",
    "$ref", "$dynamicRef", "$recursiveRef",
)  # fmt: skip
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_IN_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_ALONE = ("items", "additionalItems", "additionalProperties")
_COMBINED = ("allOf", "anyOf", "oneOf", "$ref")
MAX_FORMAT_LENGTH = 32  # characters of a format's name in a warning


def drop_unenforceable(
    schema: dict[str, Any], check: Callable[[dict[str, Any]], None]
) -> tuple[dict[str, Any], list[str]]:
    """A schema that the compiler accepts, and the names of the keywords dropped for it. `check` raises InvalidRequest
    for a schema that cannot be compiled; its error for the resulting schema is raised here."""

    def is_enforceable(one: dict[str, Any]) -> bool:
        try:
            check(one)
        except InvalidRequest:
            return False
        return True

    if is_enforceable(schema):
        return schema, []
    dropper = _KeywordDropper(is_enforceable)
    relaxed = dropper.schema(json.loads(json.dumps(schema)))
    relaxed = relaxed if isinstance(relaxed, dict) else {"not": {}}
    if not is_enforceable(relaxed) and _coerce_one_of(relaxed):
        dropper.dropped["oneOf (taken as anyOf)"] = None
    check(relaxed)
    return relaxed, sorted(dropper.dropped)


class _KeywordDropper:
    def __init__(self, is_enforceable: IsEnforceable) -> None:
        self.is_enforceable = is_enforceable
        self.dropped: dict[str, None] = {}

    def schema(self, schema: Any) -> Any:
        """Changes the schema in place; False for one that nothing satisfies."""
        if not isinstance(schema, dict):
            return schema
        if schema.get("not") in ({}, True):
            return False
        self._drop_keywords(schema)
        self._drop_patterns(schema)
        self._drop_counts(schema)
        for keyword in _BY_NAME:
            if isinstance(schema.get(keyword), dict):
                schema[keyword] = {name: self.schema(inner) for name, inner in schema[keyword].items()}
        for keyword in _IN_LISTS:
            if isinstance(schema.get(keyword), list):
                schema[keyword] = [self.schema(inner) for inner in schema[keyword]]
        for keyword in _ALONE:
            if isinstance(schema.get(keyword), dict):
                schema[keyword] = self.schema(schema[keyword])
        return schema

    def _drop_keywords(self, schema: dict[str, Any]) -> None:
        alone = not any(word in schema for word in (*_COMBINED, "if", "dependentSchemas"))
        if schema.get("unevaluatedProperties") is False and alone:
            del schema["unevaluatedProperties"]
            schema.setdefault("additionalProperties", False)  # equivalent here
        for keyword in _NEVER:
            if keyword in schema:
                self._drop(schema, keyword, keyword)
        reference = schema.get("$ref")
        if isinstance(reference, str) and not reference.startswith("#"):
            self._drop(schema, "$ref", "$ref to another document")

    def _drop_patterns(self, schema: dict[str, Any]) -> None:
        """Formats and patterns, of values and of names."""
        form, pattern, by_pattern = (schema.get(name) for name in ("format", "pattern", "patternProperties"))
        if isinstance(form, str) and not self.is_enforceable({"type": "string", "format": form}):
            self._drop(schema, "format", f"format {form[:MAX_FORMAT_LENGTH]}")
        if isinstance(pattern, str) and not self._is_enforceable_pattern(pattern):
            self._drop(schema, "pattern", "pattern")
        if isinstance(by_pattern, dict):
            kept = {one: inner for one, inner in by_pattern.items() if self._is_enforceable_pattern(one)}
            if len(kept) < len(by_pattern):
                self.dropped["patternProperties"] = None
                schema["patternProperties"] = kept
                schema["additionalProperties"] = True

    def _drop_counts(self, schema: dict[str, Any]) -> None:
        names = ("type", "properties", "required", "additionalProperties", "minProperties", "maxProperties")
        for keyword in ("minProperties", "maxProperties"):
            if keyword in schema:
                shape = {name: schema[name] for name in names if name in schema}
                if isinstance(shape.get("properties"), dict):
                    shape["properties"] = dict.fromkeys(shape["properties"], True)
                if isinstance(shape.get("additionalProperties"), dict):
                    shape["additionalProperties"] = True
                if not self.is_enforceable(shape):
                    least = schema[keyword] if keyword == "minProperties" else 0
                    self._drop(schema, keyword, keyword)
                    needs_others = isinstance(least, int) and least > len(shape.get("properties", ()))
                    if needs_others:
                        schema.setdefault("additionalProperties", True)

    def _is_enforceable_pattern(self, pattern: str) -> bool:
        return self.is_enforceable({"type": "string", "pattern": pattern})

    def _drop(self, schema: dict[str, Any], keyword: str, name: str) -> None:
        del schema[keyword]
        self.dropped[name] = None
        if keyword in _OPEN_ENDED:
            schema.setdefault("additionalProperties", True)


def _coerce_one_of(schema: Any) -> bool:
    """Replace every `oneOf` by `anyOf`, which is equivalent where branches exclude each other; return whether there was
    one."""
    if not isinstance(schema, dict):
        return False
    inner = [schema[keyword] for keyword in _ALONE if keyword in schema]
    for keyword in (*_BY_NAME, *_IN_LISTS):
        value = schema.get(keyword)
        inner += value.values() if keyword in _BY_NAME and isinstance(value, dict) else ()
        inner += value if keyword in _IN_LISTS and isinstance(value, list) else ()
    found = sum(map(_coerce_one_of, inner)) > 0
    if isinstance(branches := schema.get("oneOf"), list):
        found = True
        del schema["oneOf"]
        if "anyOf" in schema:
            schema["allOf"] = [*schema.get("allOf", ()), {"anyOf": branches}]
        else:
            schema["anyOf"] = branches
    return found
