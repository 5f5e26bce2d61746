"""Closes the objects of a JSON schema that do not mention additional properties.

JSON Schema leaves such objects open, and models add properties until they run out of tokens. `additionalProperties:
true` keeps an object open. Objects composed of several schemas (`allOf`, a `$ref` with properties beside it) stay
unchanged: each part would forbid the properties of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MAX_DEPTH = 64  # deeper objects stay unchanged
# Each of these allows or forbids properties that are not named.
_OPEN_ENDED = ("additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames")
_CONDITIONS = ("if", "then", "else", "dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef")
_COMBINED = ("allOf", "anyOf", "oneOf", "$ref")
_OF_OBJECTS = ("properties", "required", *_OPEN_ENDED, "minProperties", "maxProperties")
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_IN_LISTS = ("prefixItems", "items")
_ALONE = ("items", "additionalItems", "additionalProperties")
_DATA = ("const", "enum", "default", "examples")  # keywords whose values are data, not schemas


def close_objects(schema: dict[str, Any]) -> dict[str, Any]:
    """Changes the schema in place and returns it."""
    composed_refs = _composed_refs(schema)
    if composed_refs is not None and "#" not in composed_refs:
        _close(schema, "#", composed_refs, 0)
    return schema


def is_closable(schema: dict[str, Any]) -> bool:
    """Whether it is an object of its own that names its properties and does not mention others."""
    properties = schema.get("properties")
    named = set(properties) if isinstance(properties, dict) else set()
    least = schema.get("minProperties", 0)
    if not isinstance(least, int) or least > len(named):  # it needs properties that are not named
        return False
    if any(word in schema for word in (*_OPEN_ENDED, *_CONDITIONS, "$ref")):
        return False
    wanted = [schema, *_branches(schema)]
    return all(isinstance(one, dict) and set(_names(one.get("required"))) <= named for one in wanted) and all(
        set(branch) <= {"required"} for branch in _branches(schema)
    )


def _close(schema: Any, pointer: str, composed_refs: set[str], depth: int) -> None:
    if not isinstance(schema, dict) or depth > MAX_DEPTH or pointer in composed_refs:
        return
    if _is_composed(schema):
        for keyword in ("$defs", "definitions"):
            _close_named(schema, keyword, pointer, composed_refs, depth)
        return
    for keyword in _BY_NAME:
        _close_named(schema, keyword, pointer, composed_refs, depth)
    for keyword in (*_IN_LISTS, "anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(keyword), list):
            for place, inner in enumerate(schema[keyword]):
                _close(inner, f"{pointer}/{keyword}/{place}", composed_refs, depth + 1)
    for keyword in _ALONE:
        _close(schema.get(keyword), f"{pointer}/{keyword}", composed_refs, depth + 1)
    if schema.get("properties") and is_closable(schema):
        schema["additionalProperties"] = False


def _close_named(schema: dict[str, Any], keyword: str, pointer: str, composed_refs: set[str], depth: int) -> None:
    if isinstance(schema.get(keyword), dict):
        for name, inner in schema[keyword].items():
            _close(inner, f"{pointer}/{keyword}/{_escape(name)}", composed_refs, depth + 1)


def _is_composed(schema: dict[str, Any]) -> bool:
    """Whether an object of this schema has to satisfy several parts that each name properties."""
    if any(word in schema for word in _CONDITIONS):
        return True
    combined = [word for word in _COMBINED if word in schema]
    if not combined or is_closable(schema):
        return False
    several = len(combined) > 1 or (isinstance(schema.get("allOf"), list) and len(schema["allOf"]) > 1)
    return several or any(word in schema for word in _OF_OBJECTS)


def _composed_refs(schema: dict[str, Any]) -> set[str] | None:
    """References that composed schemas contain, directly or not. None: they cannot be resolved."""
    found: set[str] = set()
    open_items: list[tuple[Any, bool]] = [(schema, False)]
    while open_items:
        item, inside = open_items.pop()
        if not isinstance(item, dict):
            continue
        inside = inside or _is_composed(item)
        reference = item.get("$ref")
        if inside and isinstance(reference, str) and reference not in found:
            if "%" in reference or (reference != "#" and not reference.startswith("#/")):
                return None
            found.add(reference)
            open_items.append((_target(schema, reference), True))
        for keyword, value in item.items():
            if keyword in _BY_NAME or keyword in _CONDITIONS:
                within = inside and keyword not in ("$defs", "definitions")
                open_items += [(inner, within) for inner in (value.values() if isinstance(value, dict) else ())]
            if keyword not in _BY_NAME and keyword not in _DATA:
                open_items += [(inner, inside) for inner in (value if isinstance(value, list) else [value])]
    return found


def _target(schema: Any, reference: str) -> Any:
    for step in reference.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list):
            schema = schema[int(name)] if name.isdecimal() and int(name) < len(schema) else None
        else:
            schema = schema.get(name) if isinstance(schema, dict) else None
    return schema


def _branches(schema: dict[str, Any]) -> Iterator[Any]:
    for keyword in ("allOf", "anyOf", "oneOf"):
        value = schema.get(keyword, ())
        yield from value if isinstance(value, list | tuple) else [value]


def _names(value: Any) -> list[Any]:
    """Strings among the keys of an object or the entries of a list, in a schema that has not been validated."""
    return [name for name in value if isinstance(name, str)] if isinstance(value, dict | list) else []


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
