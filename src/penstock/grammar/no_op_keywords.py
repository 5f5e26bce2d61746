"""Keywords of a JSON schema that say nothing: generators write them, and llguidance refuses all that it does not know.

Those that are left are refused with an error that names them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_IN_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_ALONE = ("items", "additionalItems", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames")


def without_neutral(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema itself, with such keywords taken out of it and of all schemas in it."""
    open_items: list[Any] = [schema]
    while open_items:
        item = open_items.pop()
        if isinstance(item, dict):
            for keyword in [keyword for keyword in item if _says_nothing(keyword, item)]:
                del item[keyword]
            open_items += _schemas_in(item)
    return schema


def _says_nothing(keyword: str, schema: dict[str, Any]) -> bool:
    """By the specification, among the keywords beside it."""
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
            return True  # names for what would refer to them, which is refused
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
