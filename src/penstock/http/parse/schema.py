"""From the bytes of a body to a schema's instance, or to one sentence about what is wrong with them."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from penstock.errors import InvalidRequest
from penstock.http.parse.error_text import FieldPath, describe_value, field_path
from penstock.http.parse.json_body import decode_object
from penstock.http.parse.unions import BRANCH

Schema = TypeVar("Schema", bound=BaseModel)


def parse(schema: type[Schema], raw: bytes) -> Schema:
    """Raises InvalidRequest, and nothing else."""
    body = decode_object(raw)
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        # Of several errors the first in the schema's order will do: unknown fields come before all others.
        raise _invalid(error.errors(include_url=False)[0]) from None


# --- what pydantic has to say, in our words

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
    place, context = error["loc"], error.get("ctx", {})
    predicate = _predicate(error, context)
    if error["type"] == "union_tag_not_found":
        field = context["discriminator"].strip("'()")  # that the union goes by
        place, predicate = _untagged(place, field, error["input"])
    elif error["type"] == "union_tag_invalid":
        place = (*place, context["discriminator"].strip("'()"))
    elif context.get("param"):
        place = (*place, context["param"])
    elif place[-1:] == ("[key]",):
        place, predicate = place[:-2], f"has the name {describe_value(error['input'])}, which {predicate}"
    where = field_path(place)
    return InvalidRequest(f"{where} {predicate}", param=where)


def _untagged(place: FieldPath, field: str, given: Any) -> tuple[FieldPath, str]:
    """What is at fault where the branch of a union cannot be chosen by its field: all of it, or the field."""
    if not isinstance(given, dict):
        return place, f"must be an object, got {describe_value(given)}"
    place = (*place, field)
    return place, f"must be a string, got {describe_value(given[field])}" if field in given else "is required"


def _predicate(error: ErrorDetails, context: dict[str, Any]) -> str:
    """What is wrong, as the rest of a sentence that begins with the field."""
    kind, given = error["type"], describe_value(error["input"])
    match kind:
        case "field":
            return str(context["text"])
        case "missing":
            return "is required"
        case "union_tag_invalid":
            tag = describe_value(context["tag"].removeprefix(BRANCH))
            return f"must be one of {_quoted(context['expected_tags'])}, got {tag}"
        case "shape":
            return f"must be {error['msg']}, got {given}"
        case "literal_error":
            return f"must be {_quoted(context['expected'])}, got {given}"
        case "string_pattern_mismatch":
            return "is not a token id" if error["loc"][-1] == "[key]" else f"must be a name, got {given}"
    if kind in _EXPECTED:
        return f"must be {_EXPECTED[kind]}, got {given}"
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return f"must be {words} {_bound(context[bound])}, got {given}"
    if kind in _SIZES:
        words, bound, unit = _SIZES[kind]
        return "must not be empty" if context[bound] == 1 else f"must have {words} {context[bound]} {unit}"
    return f"is wrong: {error['msg']}"


def _quoted(choices: str) -> str:
    """As JSON does, where pydantic has them as Python does."""
    return choices.replace(repr(BRANCH)[1:-1], "").replace("'", '"')


def _bound(value: float) -> str:
    return str(int(value) if value == int(value) else value)
