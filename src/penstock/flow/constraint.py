"""Constraints on the output: a JSON schema, a regex, choices or a grammar."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, get_args

import msgspec

from penstock.errors import InvalidRequest

ConstraintKind = Literal["json_object", "json_schema", "regex", "choice", "grammar"]
KINDS: tuple[str, ...] = get_args(ConstraintKind)


class Constraint(msgspec.Struct, frozen=True):
    """The output is a text of this language, or the beginning of one if max_tokens truncates it.

    `SamplingParams(constraint=Constraint.json_schema({"type": "object", ...}))`
    """

    kind: ConstraintKind
    # The schema or the list of choices as JSON, the regex, or the grammar in Lark or EBNF; "" for json_object.
    source: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidRequest(f"a constraint is one of {', '.join(KINDS)}, not {self.kind!r}", param="constraint")
        if not isinstance(self.source, str):
            raise InvalidRequest("the source of a constraint is a text", param=self.param)
        if not self.source and self.kind != "json_object":
            raise InvalidRequest("it must not be empty", param=self.param)

    @property
    def param(self) -> str:
        """The parameter that an error about it names."""
        return f"constraint.{self.kind}"

    @classmethod
    def json_object(cls) -> Constraint:
        """Any JSON object."""
        return cls("json_object")

    @classmethod
    def json_schema(cls, schema: dict[str, Any] | bool) -> Constraint:
        """JSON that is valid by this schema, with properties in the order of the schema."""
        try:
            return cls("json_schema", json.dumps(schema, ensure_ascii=False))
        except RecursionError:
            raise InvalidRequest("the schema is nested too deeply", param="constraint.json_schema") from None

    @classmethod
    def regex(cls, expression: str) -> Constraint:
        """A text that the whole expression matches."""
        return cls("regex", expression)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Constraint:
        """One of these texts."""
        return cls("choice", json.dumps(list(texts), ensure_ascii=False))

    @classmethod
    def grammar(cls, text: str) -> Constraint:
        """A text of this grammar, in Lark's notation or llama.cpp's GBNF."""
        return cls("grammar", text)
