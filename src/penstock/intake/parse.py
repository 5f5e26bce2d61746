"""From the bytes of a body to a schema's instance, or to one sentence about what is wrong with them."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from penstock.errors import InvalidRequest
from penstock.intake.fields import LONGEST_NAME, MAX_MEMBERS

Schema = TypeVar("Schema", bound=BaseModel)
Place = tuple[str | int, ...]

# Escapes that may stand for what is no character, or for one that no text has: half a surrogate pair, NUL.
_SUSPECT_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
_NO_CHARACTER = re.compile("[\x00\ud800-\udfff]")


def parse(schema: type[Schema], raw: bytes) -> Schema:
    """Raises InvalidRequest, and nothing else."""
    body = decoded(raw)
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        # Of several errors the first in the schema's order will do: unknown fields come before all others.
        raise _invalid(error.errors(include_url=False)[0]) from None


# --- JSON


def decoded(raw: bytes) -> dict[str, Any]:
    """The object a body holds. Raises InvalidRequest, and nothing else."""
    body = _decode(raw)
    if not isinstance(body, dict):
        raise InvalidRequest(f"the body must be a JSON object, got {_shown(body)}")
    return body


def _decode(raw: bytes) -> Any:
    try:
        text = raw.decode()
        body = json.loads(text, object_pairs_hook=_object, parse_float=_float, parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8: byte {error.start} is wrong") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        message = f"the body is not valid JSON: {error.msg} ({where})" if raw else "the body is empty"
        raise InvalidRequest(message) from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
    except ValueError:  # all that is left: Python converts no longer ones
        raise InvalidRequest("the body has an integer of more than 4300 digits") from None
    if _SUSPECT_ESCAPE.search(text):
        _check_characters(body)
    return body


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(members) > MAX_MEMBERS:
        raise InvalidRequest(f"the body has an object with more than {MAX_MEMBERS} members")
    if len(found) < len(members):
        twice = Counter(name for name, _ in members).most_common(1)[0][0]
        raise InvalidRequest(f"the body has {_shown(twice)} twice in one object", param=_path([twice]))
    return found


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise InvalidRequest(f"the body has a number that is too large: {text[:LONGEST_NAME]}")
    return number


def _no_number(text: str) -> NoReturn:
    raise InvalidRequest(f"the body is not valid JSON: there is no {text} in JSON")


def _check_characters(body: Any) -> None:
    """Walks without recursion: the body may be as deep as the decoder lets it."""
    open_items: list[tuple[Place, Any]] = [((), body)]
    while open_items:
        place, value = open_items.pop()
        if isinstance(value, str):
            if _NO_CHARACTER.search(value):
                raise InvalidRequest(
                    f"{_path(place) or 'the body'} is not valid text: it has a NUL or half of a surrogate pair",
                    param=_path(place) or None,
                )
        elif isinstance(value, dict):
            open_items += [(place, name) for name in value]
            open_items += [((*place, name), inner) for name, inner in value.items()]
        elif isinstance(value, list):
            open_items += [((*place, index), inner) for index, inner in enumerate(value)]


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
        place, predicate = place[:-2], f"has the name {_shown(error['input'])}, which {predicate}"
    path = _path(place)
    return InvalidRequest(f"{path} {predicate}", param=path)


def _untagged(place: Place, field: str, given: Any) -> tuple[Place, str]:
    """What is at fault where the branch of a union cannot be chosen by its field: all of it, or the field."""
    if not isinstance(given, dict):
        return place, f"must be an object, got {_shown(given)}"
    place = (*place, field)
    return place, f"must be a string, got {_shown(given[field])}" if field in given else "is required"


def _predicate(error: ErrorDetails, context: dict[str, Any]) -> str:
    """What is wrong, as the rest of a sentence that begins with the field."""
    kind, given = error["type"], _shown(error["input"])
    match kind:
        case "field":
            return str(context["text"])
        case "missing":
            return "is required"
        case "union_tag_invalid":
            return f"must be one of {_quoted(context['expected_tags'])}, got {_shown(_unbracketed(context['tag']))}"
        case "shape":
            return f"must be {error['msg']}, got {given}"
        case "literal_error":
            return f"must be {_quoted(context['expected'])}, got {given}"
        case "string_pattern_mismatch":
            return "is not a token id"
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
    return re.sub("<(.*?)>", r"\1", choices).replace("'", '"')  # as JSON does


def _unbracketed(tag: str) -> str:
    return tag[1:-1] if tag.startswith("<") else tag


def _bound(value: float) -> str:
    return str(int(value) if value == int(value) else value)


def _path(place: Iterable[str | int]) -> str:
    """As OpenAI writes it: messages[0].content[1].text"""
    path = ""
    for step in place:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not _is_tag(step):
            path += f".{_short(step)}" if path else _short(step)
    return path


def _is_tag(step: str) -> bool:
    """Whether it is the branch of a union, which is of no interest to a client."""
    return step.startswith("<") and step.endswith(">")


def _shown(value: Any) -> str:
    """A value in an error: short, and as JSON has it."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return _short(json.dumps(value, ensure_ascii=False))


def _short(text: str) -> str:
    """Fit to be sent back, whatever the client called it."""
    text = text if len(text) <= LONGEST_NAME else text[:LONGEST_NAME] + "…"
    return text.encode(errors="replace").decode()
