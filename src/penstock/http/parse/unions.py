"""Unions in the schemas. Pydantic would tell what each of their branches has to say of a value; here the value chooses
one of them, and only that is asked.

The chosen branch is part of an error's location, where it is of no interest to a client (`wording`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

BRANCH = "\0"  # in front of its name: no name in a body has it
_OTHER = "*"
_OTHER_BRANCH = BRANCH + _OTHER


@dataclass(frozen=True, slots=True)
class ByField:
    """Of models: takes the one whose literal `field` is the value's. `default`: where there is no such field. A model
    whose field is any string takes what no other does."""

    field: str
    default: str | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        branches = {
            BRANCH + word: handler.generate_schema(model)
            for model in get_args(source)
            for word in _words(model.model_fields[self.field].annotation) or [_OTHER]
        }

        def choose(value: Any) -> str | None:
            given = value.get(self.field, self.default) if isinstance(value, dict) else None
            if not isinstance(given, str):
                return None
            return BRANCH + (_OTHER if _OTHER_BRANCH in branches and BRANCH + given not in branches else given)

        choose.__name__ = self.field  # for the error
        return core_schema.tagged_union_schema(branches, choose)


@dataclass(frozen=True, slots=True)
class ByJsonType:
    """Of a string, a list and an object, or two of them: takes the one the value is. `expected`: what it should be."""

    expected: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        kinds = {_kind(branch): handler.generate_schema(branch) for branch in get_args(source)}
        branches = {BRANCH + kind.__name__: schema for kind, schema in kinds.items()}

        def choose(value: Any) -> str:
            return BRANCH + type(value).__name__

        return core_schema.tagged_union_schema(
            branches, choose, custom_error_type="shape", custom_error_message=self.expected
        )


def _words(annotation: Any) -> list[str]:
    """Of a literal, or one that may be left out."""
    literals = [part for part in (annotation, *get_args(annotation)) if get_origin(part) is Literal]
    return [word for literal in literals for word in get_args(literal)]


def _kind(branch: Any) -> type:
    """Which of JSON's types a branch takes."""
    plain = get_args(branch)[0] if get_origin(branch) is Annotated else branch
    if get_origin(plain) is list:
        return list
    if get_origin(plain) is dict:
        return dict
    return dict if isinstance(plain, type) and issubclass(plain, BaseModel) else str
