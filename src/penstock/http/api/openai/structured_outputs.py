"""Other servers' fields for structured output: vLLM's `structured_outputs` and the older `guided_*`, SGLang's `regex`
and `ebnf`, llama.cpp's `grammar` and `json_schema`. `response_format` is OpenAI's.

A request may have at most one of them.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import AfterValidator, Field, model_validator

from penstock.flow import Constraint
from penstock.flow.constraint import ConstraintKind
from penstock.http.api.fields import StrictModel, field_error
from penstock.http.api.openai.ignored_fields import STRUCTURED
from penstock.http.api.response_format import CLIENT_NAMES, ResponseFormat, TextFormat, to_constraint
from penstock.http.parse.unions import ByJsonType


def _read(given: dict[str, Any] | str) -> dict[str, Any]:
    """A schema that is sent as a string."""
    if isinstance(given, dict):
        return given
    try:
        found = msgspec.json.decode(given)
    except (msgspec.DecodeError, RecursionError):
        raise field_error("is not JSON") from None
    if not isinstance(found, dict):
        raise field_error("must be the JSON of an object")
    return found


Schema = Annotated[dict[str, Any] | str, ByJsonType("an object, or its JSON as a string"), AfterValidator(_read)]
Choices = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=10_000, fail_fast=True)]
ConstraintField = tuple[str, ConstraintKind, Any]  # field, kind and value


class StructuredOutputs(StrictModel):
    """Exactly one of the first five."""

    form: Schema | None = Field(None, alias="json", description="JSON that is valid by this schema.")
    regex: str | None = Field(None, description="A text that the whole expression matches.")
    choice: Choices | None = Field(None, description="One of these texts.")
    grammar: str | None = Field(None, description="A text of this grammar: EBNF, or Lark's notation.")
    json_object: bool | None = Field(None, description="Any JSON object.")
    structural_tag: Annotated[Any, STRUCTURED["structural_tag"]] = None
    whitespace_pattern: Annotated[Any, STRUCTURED["whitespace_pattern"]] = None
    disable_any_whitespace: Annotated[Any, STRUCTURED["disable_any_whitespace"]] = None
    disable_additional_properties: Annotated[Any, STRUCTURED["disable_additional_properties"]] = None

    def constraint_fields(self) -> list[ConstraintField]:
        fields: list[tuple[str, ConstraintKind, Any]] = [
            ("json", "json_schema", self.form),
            ("regex", "regex", self.regex or None),
            ("choice", "choice", self.choice),
            ("grammar", "grammar", self.grammar or None),
            ("json_object", "json_object", self.json_object or None),
        ]
        return [(f"structured_outputs.{name}", kind, value) for name, kind, value in fields if value is not None]


class StructuredOutputFields(StrictModel):
    """What a body may have beside, or in place of, `response_format`."""

    response_format: ResponseFormat | None = Field(
        None, description="What the answer must look like: it cannot come out otherwise. Plain completions have it too."
    )
    structured_outputs: StructuredOutputs | None = Field(
        None, description="Extension. vLLM's name for what `response_format` does."
    )
    json_schema: Schema | None = Field(None, description="Extension. JSON that is valid by this schema.")
    regex: str | None = Field(None, description="Extension. A text that the whole expression matches.")
    grammar: str | None = Field(
        None, description="Extension. A text of this grammar: llama.cpp's GBNF, or Lark's notation."
    )
    ebnf: str | None = Field(None, description="Extension. A text of this grammar, in the EBNF of SGLang.")
    guided_json: Schema | None = Field(None, description="Extension. The older name of `structured_outputs.json`.")
    guided_regex: str | None = Field(None, description="Extension. The older name of `structured_outputs.regex`.")
    guided_choice: Choices | None = Field(None, description="Extension. The older name of `structured_outputs.choice`.")
    guided_grammar: str | None = Field(None, description="Extension. The older name of `structured_outputs.grammar`.")
    guided_whitespace_pattern: Annotated[Any, STRUCTURED["whitespace_pattern"]] = None
    guided_decoding_backend: Annotated[Any, STRUCTURED["guided_decoding_backend"]] = None
    structural_tag: Annotated[Any, STRUCTURED["structural_tag"]] = None

    @model_validator(mode="after")
    def _check_structured(self) -> StructuredOutputFields:
        names = [name for name, _, _ in self._constraint_fields()]
        if self.structured_outputs is not None and not self.structured_outputs.constraint_fields():
            raise field_error("must have one of json, regex, choice, grammar and json_object", "structured_outputs")
        if self.response_format is not None and not isinstance(self.response_format, TextFormat):
            names.insert(0, "response_format")
        if len(names) > 1:
            raise field_error(f"cannot be used together with {names[0]}", names[1])
        return self

    def constraint(self) -> Constraint | None:
        """The requested constraint, under any of its names. An empty string requests none."""
        for _, kind, value in self._constraint_fields():
            match kind:
                case "json_schema":
                    return Constraint.json_schema(value)
                case "choice":
                    return Constraint.choice(value)
                case "json_object":
                    return Constraint.json_object()
                case _:
                    return Constraint(kind, value)
        return to_constraint(self.response_format)

    def client_names(self) -> dict[str, str]:
        """For `client_field_names`."""
        return {**CLIENT_NAMES, **{f"constraint.{kind}": name for name, kind, _ in self._constraint_fields()}}

    def _constraint_fields(self) -> list[ConstraintField]:
        fields: list[tuple[str, ConstraintKind, Any]] = [
            ("json_schema", "json_schema", self.json_schema),
            ("regex", "regex", self.regex or None),
            ("grammar", "grammar", self.grammar or None),
            ("ebnf", "grammar", self.ebnf or None),
            ("guided_json", "json_schema", self.guided_json),
            ("guided_regex", "regex", self.guided_regex or None),
            ("guided_choice", "choice", self.guided_choice),
            ("guided_grammar", "grammar", self.guided_grammar or None),
        ]
        nested = self.structured_outputs.constraint_fields() if self.structured_outputs is not None else []
        return [one for one in fields if one[2] is not None] + nested
