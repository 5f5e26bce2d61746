"""Constraints as grammars that llguidance reads, and the limits that can be checked without compiling them."""

from __future__ import annotations

import json
import re
from typing import Any

from penstock.errors import InvalidRequest
from penstock.flow import Constraint
from penstock.grammar.close_objects import close_objects
from penstock.grammar.ebnf import EbnfError, ebnf_to_lark, is_ebnf
from penstock.grammar.lark import JSON_OPTIONS, lark_literal
from penstock.grammar.no_op_keywords import drop_no_op_keywords

MAX_SOURCE_BYTES = 1 << 19
MAX_CHOICES = 10_000
MAX_REPETITIONS = 50_000  # in a regular expression: each may take a state of the lexer, see `compiler`

# Options of a rule that llguidance leaves to the sampler: `name[temperature=0.5]: ...`
_SAMPLING_OPTION = re.compile(r"^\s*[!?]?[a-z_][\w-]*\s*\[[^\]\n]*\b(temperature|max_tokens|stop)\s*=", re.MULTILINE)
# Escapes and classes, in which braces are letters; or a counted repetition.
_REPETITION = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{(\d+)(?:,(\d*))?\}", re.DOTALL)
_DATA = ("const", "enum", "default", "examples")  # keywords whose values are data, not schemas
_NOUNS = {
    "json_object": "JSON mode",
    "json_schema": "the JSON schema",
    "regex": "the regular expression",
    "choice": "the list of choices",
    "grammar": "the grammar",
}


def constraint_error(constraint: Constraint, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{_NOUNS[constraint.kind]} cannot be used: {reason}", param=constraint.param)


def check_size(constraint: Constraint) -> None:
    if len(constraint.source.encode(errors="replace")) > MAX_SOURCE_BYTES:
        raise constraint_error(constraint, f"it is longer than {MAX_SOURCE_BYTES} bytes")


def to_llguidance(constraint: Constraint) -> str:
    """Raises InvalidRequest for a constraint that need not be compiled to be rejected."""
    from llguidance import LLMatcher

    source = constraint.source
    check_size(constraint)
    match constraint.kind:
        case "json_object":
            return _from_schema(constraint, {"type": "object"})
        case "json_schema":
            return _from_schema(constraint, _decode(constraint, "JSON"))
        case "regex":
            _check_repetitions(constraint)
            return LLMatcher.grammar_from_regex(source)
        case "choice":
            # One terminal: the parser would track alternatives of a rule separately at every token.
            choices = " | ".join(map(lark_literal, _choices(constraint)))
            return LLMatcher.grammar_from_lark(f"start: ONE\nONE: {choices}")
        case "grammar":
            # Several grammars that refer to each other come in llguidance's own JSON.
            return source if source.startswith("{") else LLMatcher.grammar_from_lark(to_lark(constraint))


def to_lark(constraint: Constraint) -> str:
    """A constraint of the kind "grammar", written in Lark's notation or in EBNF, in Lark's notation."""
    lark = constraint.source
    if is_ebnf(lark):
        try:
            return ebnf_to_lark(lark)
        except EbnfError as error:
            raise constraint_error(constraint, str(error)) from None
    if found := _SAMPLING_OPTION.search(lark):
        raise constraint_error(constraint, f"the option {found[1]} of a rule is not supported")
    return lark


def _from_schema(constraint: Constraint, schema: Any) -> str:
    from llguidance import LLMatcher

    schema = {} if schema is True else {"not": {}} if schema is False else schema
    if not isinstance(schema, dict):
        raise constraint_error(constraint, "it must be an object")
    schema = close_objects(drop_no_op_keywords(schema))
    _check_min_properties(constraint, schema)
    options: Any = JSON_OPTIONS
    try:
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options)
    except ValueError as error:  # nested too deeply, for one
        raise constraint_error(constraint, str(error)) from None


def _check_repetitions(constraint: Constraint) -> None:
    for found in _REPETITION.finditer(constraint.source):
        if any(len(count) > 9 or int(count) > MAX_REPETITIONS for count in found.groups() if count):
            raise constraint_error(constraint, f"{found[0][:32]} is more than {MAX_REPETITIONS} repetitions")


def _check_min_properties(constraint: Constraint, schema: dict[str, Any]) -> None:
    """A grammar cannot prevent duplicate keys, and JSON decoders count them once: too few properties may remain."""
    open_items: list[Any] = [schema]
    while open_items:
        item = open_items.pop()
        if isinstance(item, dict):
            least, required = item.get("minProperties"), item.get("required")
            if isinstance(least, int) and least > max(1, len(required) if isinstance(required, list) else 0):
                reason = "minProperties is supported up to 1 or the number of required properties"
                raise constraint_error(constraint, reason)
            open_items += [inner for name, inner in item.items() if name not in _DATA]
        elif isinstance(item, list):
            open_items += item


def _decode(constraint: Constraint, what: str) -> Any:
    try:
        return json.loads(constraint.source)
    except ValueError as error:
        raise constraint_error(constraint, f"it is not {what}: {error}") from None
    except RecursionError:
        raise constraint_error(constraint, "it is nested too deeply") from None


def _choices(constraint: Constraint) -> list[str]:
    choices = _decode(constraint, "a JSON list of texts")
    if not isinstance(choices, list) or not all(isinstance(text, str) and text for text in choices):
        raise constraint_error(constraint, "it must be a list of texts, none of them empty")
    if not 0 < len(choices) <= MAX_CHOICES:
        raise constraint_error(constraint, f"it must have 1 to {MAX_CHOICES} entries, not {len(choices)}")
    return choices
