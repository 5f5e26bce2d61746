"""Validates a body against a schema; pydantic's errors become one sentence that names the field."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from penstock.errors import InvalidRequest
from penstock.http.parse.error_text import FieldPath, describe_value, field_path
from penstock.http.parse.json_body import decode_object
from penstock.http.parse.unions import BRANCH

Schema = TypeVar("Schema", bound=BaseModel)

_building = threading.Lock()


def parse(schema: type[Schema], raw: bytes) -> Schema:
    """Raises InvalidRequest and nothing else."""
    body = decode_object(raw)
    if not schema.__pydantic_complete__:
        build(schema)
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        # The first error in the schema's order: unknown fields come before all others.
        raise _invalid(error.errors(include_url=False)[0]) from None


def build(schema: type[BaseModel]) -> None:
    """Schemas with `defer_build` get their validators with their first body, so that a server starts faster."""
    with _building:  # long bodies are parsed in threads
        schema.model_rebuild()


# --- messages for pydantic's errors

_EXPECTED = {
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
_BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than_equal": ("at most", "le"),
}
_SIZES = {
    "too_short": ("at least", "min_length", "entries"),
    "too_long": ("at most", "max_length", "entries"),
    "string_too_short": ("at least", "min_length", "characters"),
    "string_too_long": ("at most", "max_length", "characters"),
}


def _invalid(error: ErrorDetails) -> InvalidRequest:
    path, context = error["loc"], error.get("ctx", {})
    predicate = _predicate(error, context)
    if error["type"] == "union_tag_not_found":
        field = context["discriminator"].strip("'()")  # the discriminator
        path, predicate = _union_error(path, field, error["input"])
    elif error["type"] == "union_tag_invalid":
        path = (*path, context["discriminator"].strip("'()"))
    elif context.get("param"):
        path = (*path, context["param"])
    elif path[-1:] == ("[key]",):
        path, predicate = path[:-2], f"has the name {describe_value(error['input'])}, which {predicate}"
    where = field_path(path)
    return InvalidRequest(f"{where} {predicate}", param=where)


def _union_error(path: FieldPath, field: str, value: Any) -> tuple[FieldPath, str]:
    """Where a union's branch cannot be chosen: the value is not an object, or its discriminator field is wrong."""
    if not isinstance(value, dict):
        return path, f"must be an object, got {describe_value(value)}"
    path = (*path, field)
    return path, f"must be a string, got {describe_value(value[field])}" if field in value else "is required"


def _predicate(error: ErrorDetails, context: dict[str, Any]) -> str:
    """The rest of a sentence that begins with the field."""
    kind, value = error["type"], describe_value(error["input"])
    match kind:
        case "field":
            return str(context["text"])
        case "missing":
            return "is required"
        case "union_tag_invalid":
            tag = describe_value(context["tag"].removeprefix(BRANCH))
            return f"must be one of {_requote(context['expected_tags'])}, got {tag}"
        case "shape":
            return f"must be {error['msg']}, got {value}"
        case "literal_error":
            return f"must be {_requote(context['expected'])}, got {value}"
        case "string_pattern_mismatch":
            return "is not a token id" if error["loc"][-1] == "[key]" else f"must be a name, got {value}"
    if kind in _EXPECTED:
        return f"must be {_EXPECTED[kind]}, got {value}"
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return f"must be {words} {_bound(context[bound])}, got {value}"
    if kind in _SIZES:
        words, bound, unit = _SIZES[kind]
        return "must not be empty" if context[bound] == 1 else f"must have {words} {context[bound]} {unit}"
    return f"is wrong: {error['msg']}"


def _requote(choices: str) -> str:
    """In JSON's double quotes; pydantic writes Python's."""
    return choices.replace(repr(BRANCH)[1:-1], "").replace("'", '"')


def _bound(value: float) -> str:
    return str(int(value) if value == int(value) else value)
