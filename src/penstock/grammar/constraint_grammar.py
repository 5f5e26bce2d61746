"""Constraints as grammars that llguidance reads.

White space in JSON is bounded: a model that has lost its thread likes nothing better than white space without end.
Between two symbols there may be one or two blanks, a tab, or a line break with up to 32 blanks behind it.
"""

from __future__ import annotations

import json
import re
from typing import Any

from penstock.errors import InvalidRequest
from penstock.flow import Constraint
from penstock.grammar.close_objects import close_objects
from penstock.grammar.ebnf import EbnfError, is_ebnf, to_lark
from penstock.grammar.no_op_keywords import without_neutral

MAX_SOURCE_BYTES = 1 << 19
MAX_CHOICES = 10_000

# Anything a schema itself says under "x-guidance" is overridden: `lenient` would drop what is not supported in silence.
OPTIONS: dict[str, Any] = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": r"( {1,2}|\t|\r?\n[ \t]{0,32})",
    "coerce_one_of": False,
    "lenient": False,
    "json_allow_general_unicode_escapes": False,
}

# Options of a rule that llguidance leaves to whoever samples: `name[temperature=0.5]: ...`
_SAMPLING_OPTION = re.compile(r"^\s*[!?]?[a-z_][\w-]*\s*\[[^\]\n]*\b(temperature|max_tokens|stop)\s*=", re.MULTILINE)


_DATA = ("const", "enum", "default", "examples")  # keywords whose values are no schemas

_NOUNS = {
    "json_object": "JSON mode",
    "json_schema": "the JSON schema",
    "regex": "the regular expression",
    "choice": "the list of choices",
    "grammar": "the grammar",
}


def unusable(constraint: Constraint, why: str) -> InvalidRequest:
    return InvalidRequest(f"{_NOUNS[constraint.kind]} cannot be used: {why}", param=constraint.param)


def check_size(constraint: Constraint) -> None:
    if len(constraint.source.encode(errors="replace")) > MAX_SOURCE_BYTES:
        raise unusable(constraint, f"it is longer than {MAX_SOURCE_BYTES} bytes")


def grammar_of(constraint: Constraint) -> str:
    """Raises InvalidRequest for what can be told without compiling it."""
    from llguidance import LLMatcher

    source = constraint.source
    check_size(constraint)
    match constraint.kind:
        case "json_object":
            return _of_schema(constraint, {"type": "object"})
        case "json_schema":
            return _of_schema(constraint, _decode(constraint, "JSON"))
        case "regex":
            return LLMatcher.grammar_from_regex(source)
        case "choice":
            # As one terminal: alternatives of a rule are kept apart at every token.
            return LLMatcher.grammar_from_lark("start: ONE\nONE: " + " | ".join(map(literal, _choices(constraint))))
        case "grammar":
            # Several grammars that refer to each other come as llguidance's own JSON.
            return source if source.startswith("{") else LLMatcher.grammar_from_lark(lark_of(constraint))


def json_rule(schema: dict[str, Any]) -> str:
    """What stands for a JSON value of this schema in a Lark rule, white space bounded as everywhere."""
    plain = close_objects(without_neutral(json.loads(json.dumps(schema))))
    return "%json " + json.dumps({**plain, "x-guidance": OPTIONS}, ensure_ascii=False)


def literal(text: str) -> str:
    """A text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)


def _of_schema(constraint: Constraint, schema: Any) -> str:
    from llguidance import LLMatcher

    schema = {} if schema is True else {"not": {}} if schema is False else schema
    if not isinstance(schema, dict):
        raise unusable(constraint, "it must be an object")
    schema = close_objects(without_neutral(schema))
    _check_counts(constraint, schema)
    options: Any = OPTIONS
    try:
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options)
    except ValueError as error:  # nested too deeply, for one
        raise unusable(constraint, str(error)) from None


def _check_counts(constraint: Constraint, schema: dict[str, Any]) -> None:
    """A grammar cannot keep a key from coming twice, and JSON's readers count it once: too few may be left."""
    open_items: list[Any] = [schema]
    while open_items:
        item = open_items.pop()
        if isinstance(item, dict):
            least, required = item.get("minProperties"), item.get("required")
            if isinstance(least, int) and least > max(1, len(required) if isinstance(required, list) else 0):
                raise unusable(constraint, "minProperties is supported up to 1 or the number of required properties")
            open_items += [inner for name, inner in item.items() if name not in _DATA]
        elif isinstance(item, list):
            open_items += item


def _decode(constraint: Constraint, what: str) -> Any:
    try:
        return json.loads(constraint.source)
    except ValueError as error:
        raise unusable(constraint, f"it is not {what}: {error}") from None
    except RecursionError:
        raise unusable(constraint, "it is nested too deeply") from None


def _choices(constraint: Constraint) -> list[str]:
    choices = _decode(constraint, "a JSON list of texts")
    if not isinstance(choices, list) or not all(isinstance(text, str) and text for text in choices):
        raise unusable(constraint, "it must be a list of texts, none of them empty")
    if not 0 < len(choices) <= MAX_CHOICES:
        raise unusable(constraint, f"it must have 1 to {MAX_CHOICES} entries, not {len(choices)}")
    return choices


def lark_of(constraint: Constraint) -> str:
    """A constraint of the kind "grammar" in Lark's notation, be it written so or as EBNF."""
    lark = constraint.source
    if is_ebnf(lark):
        try:
            return to_lark(lark)
        except EbnfError as error:
            raise unusable(constraint, str(error)) from None
    if found := _SAMPLING_OPTION.search(lark):
        raise unusable(constraint, f"the option {found[1]} of a rule is not supported")
    return lark
