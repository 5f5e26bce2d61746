"""Discriminated unions in the schemas: the value chooses one branch, and only that branch's errors are reported.

Pydantic adds the chosen branch to an error's location; `error_text.field_path` leaves it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

BRANCH = "\0"  # prefix of a branch in a location: names in a body cannot have it
_OTHER = "*"
_OTHER_BRANCH = BRANCH + _OTHER


@dataclass(frozen=True, slots=True)
class ByField:
    """A union of models by a discriminator: the literal `field`. `default` is for values without the field. A model
    whose field is any string takes all other values."""

    field: str
    default: str | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        branches = {
            BRANCH + word: handler.generate_schema(model)
            for model in get_args(source)
            for word in _literal_values(model.model_fields[self.field].annotation) or [_OTHER]
        }

        def choose(value: Any) -> str | None:
            given = value.get(self.field, self.default) if isinstance(value, dict) else None
            if not isinstance(given, str):
                return None
            return BRANCH + (_OTHER if _OTHER_BRANCH in branches and BRANCH + given not in branches else given)

        choose.__name__ = self.field  # pydantic puts it into the error
        return core_schema.tagged_union_schema(branches, choose)


@dataclass(frozen=True, slots=True)
class ByJsonType:
    """A union of a string, a list and an object, or two of them, by the JSON type of the value. `expected` describes it
    in the error."""

    expected: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        kinds = {_json_type(branch): handler.generate_schema(branch) for branch in get_args(source)}
        branches = {BRANCH + kind.__name__: schema for kind, schema in kinds.items()}

        def choose(value: Any) -> str:
            return BRANCH + type(value).__name__

        return core_schema.tagged_union_schema(
            branches, choose, custom_error_type="shape", custom_error_message=self.expected
        )


def _literal_values(annotation: Any) -> list[str]:
    """The values of a literal type, optional or not."""
    literals = [part for part in (annotation, *get_args(annotation)) if get_origin(part) is Literal]
    return [word for literal in literals for word in get_args(literal)]


def _json_type(branch: Any) -> type:
    """The JSON type of a branch."""
    plain = get_args(branch)[0] if get_origin(branch) is Annotated else branch
    if get_origin(plain) is list:
        return list
    if get_origin(plain) is dict:
        return dict
    return dict if isinstance(plain, type) and issubclass(plain, BaseModel) else str
