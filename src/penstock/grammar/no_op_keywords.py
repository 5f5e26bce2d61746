"""Keywords of a JSON schema that have no effect, such as `"uniqueItems": false`: schema generators write them, and
llguidance rejects every keyword that it does not support, even with a value that restricts nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_IN_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_ALONE = ("items", "additionalItems", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames")


def drop_no_op_keywords(schema: dict[str, Any]) -> dict[str, Any]:
    """Changes the schema in place, subschemas included, and returns it."""
    open_items: list[Any] = [schema]
    while open_items:
        item = open_items.pop()
        if isinstance(item, dict):
            for keyword in [keyword for keyword in item if _has_no_effect(keyword, item)]:
                del item[keyword]
            open_items += _schemas_in(item)
    return schema


def _has_no_effect(keyword: str, schema: dict[str, Any]) -> bool:
    """By the specification of JSON Schema, given the keywords beside it."""
    value = schema[keyword]
    match keyword:
        case "uniqueItems" | "not":
            return value is False
        case "unevaluatedProperties" | "unevaluatedItems" | "propertyNames":
            return _allows_all(value)
        case "contains" | "minContains" | "maxContains":
            counted = "contains" in schema
            return not counted or (schema.get("minContains") == 0 and "maxContains" not in schema)
        case "if" | "then" | "else":
            branches = [schema[name] for name in ("then", "else") if name in schema]
            return "if" not in schema or all(map(_allows_all, branches))
        case "dependentRequired" | "dependentSchemas" | "dependencies":
            return isinstance(value, dict) and all(inner == [] or _allows_all(inner) for inner in value.values())
        case "$dynamicAnchor" | "$recursiveAnchor":
            return True  # targets of references that are rejected themselves
        case _:
            return False


def _allows_all(schema: Any) -> bool:
    return schema is True or schema == {}


def _schemas_in(schema: dict[str, Any]) -> Iterator[Any]:
    for keyword, value in schema.items():
        if keyword in _BY_NAME and isinstance(value, dict):
            yield from value.values()
        elif keyword in _IN_LISTS and isinstance(value, list):
            yield from value
        elif keyword in _ALONE:
            yield value
