"""`response_format`: the constraint on an answer. OpenAI has the first three types; the others are extensions."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from penstock.flow import Constraint
from penstock.http.api.fields import StrictModel, field_error
from penstock.http.parse.unions import ByField

_NAME = r"^[a-zA-Z0-9_-]{1,64}$"

# The pipeline's names of constraints, and where the client wrote them (`client_field_names`).
CLIENT_NAMES = {
    "constraint.json_object": "response_format",
    "constraint.json_schema": "response_format.json_schema.schema",
    "constraint.regex": "response_format.regex",
    "constraint.choice": "response_format.choice",
    "constraint.grammar": "response_format.grammar",
}


def _check_name(name: str) -> str:
    if not re.fullmatch(_NAME, name):
        raise field_error("must be 1 to 64 letters, digits, underscores or hyphens")
    return name


Name = Annotated[str, AfterValidator(_check_name), Field(json_schema_extra={"pattern": _NAME})]


class TextFormat(StrictModel):
    """Anything."""

    type: Literal["text"]


class JsonObjectFormat(StrictModel):
    """A JSON object."""

    type: Literal["json_object"]


class NamedSchema(StrictModel):
    name: Name = Field(description="The client's name for it. Not used.")
    description: str | None = Field(None, description="What it is for. Not used: tell the model in a message.")
    form: dict[str, Any] = Field(alias="schema", description="JSON Schema.")
    strict: bool | None = Field(None, description="Answers are always held to their schema.")


class JsonSchemaFormat(StrictModel):
    """JSON that is valid by a schema, with its properties in the schema's order."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class RegexFormat(StrictModel):
    """Extension. A text that the whole of an expression matches."""

    type: Literal["regex"]
    regex: str = Field(min_length=1, description="Without look-around and back-references.")


class ChoiceFormat(StrictModel):
    """Extension. One of several texts."""

    type: Literal["choice"]
    choice: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1, max_length=10_000, fail_fast=True)


class GrammarFormat(StrictModel):
    """Extension. A text of a context-free grammar."""

    type: Literal["grammar"]
    grammar: str = Field(min_length=1, description="In Lark's notation, or in the EBNF of llama.cpp.")


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat | ChoiceFormat | GrammarFormat, ByField("type")
]


def to_constraint(requested: ResponseFormat | None) -> Constraint | None:
    match requested:
        case JsonObjectFormat():
            return Constraint.json_object()
        case JsonSchemaFormat():
            return Constraint.json_schema(requested.json_schema.form)
        case RegexFormat():
            return Constraint.regex(requested.regex)
        case ChoiceFormat():
            return Constraint.choice(requested.choice)
        case GrammarFormat():
            return Constraint.grammar(requested.grammar)
    return None
