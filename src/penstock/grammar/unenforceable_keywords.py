"""A JSON schema less what cannot be enforced: for tools whose client did not ask for strict arguments.

What is left out allows more, never less. Whether a pattern or a format can be enforced is asked of the compiler.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from penstock.errors import InvalidRequest

Usable = Callable[[dict[str, Any]], bool]  # whether the compiler takes this schema

_NEVER = (
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "propertyNames",
    "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties", "unevaluatedItems",
    "$dynamicRef", "$recursiveRef",
)  # fmt: skip
# An object with one of these has room for properties that it does not name, also when the keyword is gone.
_OPEN_ENDED = (
    "if", "propertyNames", "dependentSchemas", "dependencies", "unevaluatedProperties",
    "$ref", "$dynamicRef", "$recursiveRef",
)  # fmt: skip
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_IN_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_ALONE = ("items", "additionalItems", "additionalProperties")
_COMBINED = ("allOf", "anyOf", "oneOf", "$ref")
LONGEST_FORMAT = 32  # characters of it that are told


def relaxed(schema: dict[str, Any], check: Callable[[dict[str, Any]], None]) -> tuple[dict[str, Any], list[str]]:
    """A schema that the compiler takes, and what of the given one it leaves out. `check` raises InvalidRequest for a
    schema that cannot be compiled; what it says of the relaxed one is raised here."""

    def usable(one: dict[str, Any]) -> bool:
        try:
            check(one)
        except InvalidRequest:
            return False
        return True

    if usable(schema):
        return schema, []
    relaxing = _Relaxing(usable)
    made = relaxing.schema(json.loads(json.dumps(schema)))
    made = made if isinstance(made, dict) else {"not": {}}
    if not usable(made) and _coerce_one_of(made):
        relaxing.left_out["oneOf (taken as anyOf)"] = None
    check(made)
    return made, sorted(relaxing.left_out)


class _Relaxing:
    def __init__(self, usable: Usable) -> None:
        self.usable = usable
        self.left_out: dict[str, None] = {}

    def schema(self, schema: Any) -> Any:
        """Changed in place, unless it is one that nothing satisfies."""
        if not isinstance(schema, dict):
            return schema
        if schema.get("not") in ({}, True):
            return False
        self._drop_keywords(schema)
        self._drop_texts(schema)
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
            schema.setdefault("additionalProperties", False)  # which is the same
        for keyword in _NEVER:
            if keyword in schema:
                self._leave_out(schema, keyword, keyword)
        reference = schema.get("$ref")
        if isinstance(reference, str) and not reference.startswith("#"):
            self._leave_out(schema, "$ref", "$ref to another document")

    def _drop_texts(self, schema: dict[str, Any]) -> None:
        """Formats and patterns, and patterns of names."""
        form, pattern, by_pattern = (schema.get(name) for name in ("format", "pattern", "patternProperties"))
        if isinstance(form, str) and not self.usable({"type": "string", "format": form}):
            self._leave_out(schema, "format", f"format {form[:LONGEST_FORMAT]}")
        if isinstance(pattern, str) and not self._usable_pattern(pattern):
            self._leave_out(schema, "pattern", "pattern")
        if isinstance(by_pattern, dict):
            kept = {one: inner for one, inner in by_pattern.items() if self._usable_pattern(one)}
            if len(kept) < len(by_pattern):
                self.left_out["patternProperties"] = None
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
                if not self.usable(shape):
                    least = schema[keyword] if keyword == "minProperties" else 0
                    self._leave_out(schema, keyword, keyword)
                    if isinstance(least, int) and least > len(shape.get("properties", ())):  # it has to have others
                        schema.setdefault("additionalProperties", True)

    def _usable_pattern(self, pattern: str) -> bool:
        return self.usable({"type": "string", "pattern": pattern})

    def _leave_out(self, schema: dict[str, Any], keyword: str, name: str) -> None:
        del schema[keyword]
        self.left_out[name] = None
        if keyword in _OPEN_ENDED:
            schema.setdefault("additionalProperties", True)


def _coerce_one_of(schema: Any) -> bool:
    """Make every `oneOf` an `anyOf`; whether there was one. Where its branches exclude each other that is the same."""
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
