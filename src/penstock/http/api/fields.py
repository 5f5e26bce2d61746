"""What the schemas of all APIs are built from: a base model that rejects unknown fields, and fields they share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar, Union, get_args, get_origin

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from penstock.errors import did_you_mean
from penstock.flow.tools import MAX_DEPTH, is_nested_deeper
from penstock.http.parse.error_text import MAX_SHOWN_NAME
from penstock.http.parse.query import Parameter
from penstock.http.parse.unions import ByJsonType

MAX_INT = 2**31 - 1


def field_error(text: str, param: str | None = None) -> PydanticCustomError:
    """To raise in a validator: `text` continues a sentence that begins with the field's path. `param` names the field,
    in a validator of the whole model."""
    return PydanticCustomError("field", "{text}", {"text": text, "param": param})


class StrictModel(BaseModel):
    """Rejects unknown fields, and "1" or true for 1. 1 and 1.0 are the same."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True)

    # Where an API has several types of an object and only one is supported: that type, and how errors name it.
    only: ClassVar[tuple[str, str] | None] = None

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, value: Any) -> Any:
        """Runs first: an unknown field explains more than the missing field it was meant to be, and an unsupported type
        more than the fields that belong to it."""
        if not isinstance(value, dict):
            return value
        if cls.only is not None and isinstance(given := value.get("type"), str) and given != cls.only[0]:
            raise field_error(f'is "{given[:MAX_SHOWN_NAME]}", which is not supported: only {cls.only[1]} are', "type")
        value = _with_integers(cls, value)
        known = {field.alias or name for name, field in cls.model_fields.items()}
        for name in value:
            if name not in known:
                shown = name[:MAX_SHOWN_NAME] or '""'
                raise field_error(f"is not a known field{did_you_mean(shown, known, cutoff=0.7)}", shown)
        return value


@cache
def _integer_fields(model: type[BaseModel]) -> frozenset[str]:
    """Names of the fields of type int or int | None."""
    return frozenset(name for name, field in model.model_fields.items() if _holds_integer(field.annotation))


def _holds_integer(kind: Any) -> bool:
    if get_origin(kind) is Annotated:
        return _holds_integer(get_args(kind)[0])
    return kind is int or (get_origin(kind) in (Union, UnionType) and any(map(_holds_integer, get_args(kind))))


def _with_integers(model: type[BaseModel], value: dict[str, Any]) -> dict[str, Any]:
    """With 5 for 5.0 in integer fields: in JSON they are the same, and some clients only have floats."""
    names = [name for name, given in value.items() if type(given) is float and given.is_integer()]
    return {**value, **{name: int(value[name]) for name in names if name in _integer_fields(model)}} if names else value


# What client libraries add to their copy of a response, such as the object parsed from its text. Clients append that
# copy to the conversation. It is redundant, and not passed to the chat template.
CLIENT_ONLY: Any = Field(None, exclude=True, description="A client library's own note. Taken as it comes, not used.")


# --- a text, as a string or in parts

Part = TypeVar("Part")
NonEmptyList = Annotated[list[Part], Field(min_length=1, fail_fast=True)]
TextOrParts = Annotated[str | NonEmptyList[Part], ByJsonType("a string or a list of text parts")]


class HasText(Protocol):
    @property
    def text(self) -> str: ...


def join_text(text: str | Sequence[HasText]) -> str:
    """Joins parts with line breaks."""
    return text if isinstance(text, str) else "\n".join([part.text for part in text])


# --- fields that several APIs have

MODEL = Field(None, description="The model, as `GET /v1/models` names it. Default: the first.")
MODEL_PARAMETER = Parameter(name="model", description="The model, as `GET /v1/models` names it. Default: the first.")
STREAM = Field(None, description="Send the answer as server-sent events while it is made.")
TEMPERATURE = "0: always the likeliest token. Default: what the model's makers recommend, else 1."
TOP_P = Field(None, gt=0, le=1, description="Draw from the likeliest tokens that have this share of the probability.")


class CacheControl(StrictModel):
    """A hint that never changes an answer: prefixes are cached and found by their tokens, marked or not."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: str | None = Field(None, max_length=64, description="Who shares the prefix. Not used: tenants never do.")


CACHE_CONTROL = Field(
    None,
    description="Where a prefix ends that is worth keeping. Not needed here: prefixes are cached and found by their "
    "tokens. Taken for compatibility, not used.",
)


def _check_arguments(value: dict[str, Any]) -> dict[str, Any]:
    if is_nested_deeper(value, MAX_DEPTH):
        raise field_error(f"is nested more than {MAX_DEPTH} levels deep")
    return value


# The arguments of an earlier tool call, which chat templates write as JSON.
Arguments = Annotated[dict[str, Any], AfterValidator(_check_arguments)]


def read_arguments(text: str) -> dict[str, Any] | None:
    """A tool call's arguments; None unless they are a JSON object that is not nested too deeply."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) and not is_nested_deeper(found, MAX_DEPTH) else None
