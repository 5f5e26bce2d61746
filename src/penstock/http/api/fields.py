"""What the schemas of all APIs are made of: a base that refuses what it does not know, and the shapes they share."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar, Union, get_args, get_origin

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from penstock.flow.tools import MAX_DEPTH, is_nested_deeper
from penstock.http.parse.error_text import MAX_SHOWN_NAME
from penstock.http.parse.unions import ByJsonType

MAX_INT = 2**31 - 1


def field_error(text: str, param: str | None = None) -> PydanticCustomError:
    """To raise in a validator: `text` continues a sentence that begins with the field's path. `param` names a field of
    the model that is checked as a whole."""
    return PydanticCustomError("field", "{text}", {"text": text, "param": param})


class StrictModel(BaseModel):
    """No field it does not know, no "1" for 1, no true for 1; 1 for 1.0 is fine, and 1.0 for 1."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    # Of what comes in several types, but here in one: that, and what may be asked for.
    only: ClassVar[tuple[str, str] | None] = None

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, value: Any) -> Any:
        """Before all else: a misspelt field says more than the one that is missing for it, and of another type it is
        the type that is wrong, not the names that go with it."""
        if not isinstance(value, dict):
            return value
        if cls.only is not None and isinstance(given := value.get("type"), str) and given != cls.only[0]:
            raise field_error(f'is "{given[:MAX_SHOWN_NAME]}", which is not supported: only {cls.only[1]} are', "type")
        value = _with_integers(cls, value)
        known = {field.alias or name for name, field in cls.model_fields.items()}
        for name in value:
            if name not in known:
                shown = name[:MAX_SHOWN_NAME] or '""'
                close = difflib.get_close_matches(shown, known, n=1, cutoff=0.7)
                raise field_error("is not a known field" + (f"; did you mean {close[0]}?" if close else ""), shown)
        return value


@cache
def _integer_fields(model: type[BaseModel]) -> frozenset[str]:
    """The fields that hold an integer, or nothing."""
    return frozenset(name for name, field in model.model_fields.items() if _holds_integer(field.annotation))


def _holds_integer(kind: Any) -> bool:
    if get_origin(kind) is Annotated:
        return _holds_integer(get_args(kind)[0])
    return kind is int or (get_origin(kind) in (Union, UnionType) and any(map(_holds_integer, get_args(kind))))


def _with_integers(model: type[BaseModel], value: dict[str, Any]) -> dict[str, Any]:
    """With 5 for 5.0 where an integer belongs: to JSON they are the same, and some clients have no other numbers."""
    names = [name for name, given in value.items() if type(given) is float and given.is_integer()]
    return {**value, **{name: int(value[name]) for name in names if name in _integer_fields(model)}} if names else value


# What client libraries add to their own copy of an answer, such as the object that they read from its text. Clients
# append that copy to the conversation. It says nothing that the message does not say: templates do not get to see it.
CLIENT_ONLY: Any = Field(None, exclude=True, description="A client library's own note. Taken as it comes, not used.")


# --- a text, whole or in parts

Part = TypeVar("Part")
NonEmptyList = Annotated[list[Part], Field(min_length=1, fail_fast=True)]
TextOrParts = Annotated[str | NonEmptyList[Part], ByJsonType("a string or a list of text parts")]


class HasText(Protocol):
    @property
    def text(self) -> str: ...


def join_text(given: str | Sequence[HasText]) -> str:
    """Parts are joined by line breaks."""
    return given if isinstance(given, str) else "\n".join([part.text for part in given])


# --- fields that several of them have

MODEL = Field(None, description="The model, as `GET /v1/models` names it. Default: the one that is served.")
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


# Of a call that was made before: chat templates write them as JSON.
Arguments = Annotated[dict[str, Any], AfterValidator(_check_arguments)]


def read_arguments(text: str) -> dict[str, Any] | None:
    """Those of a call, if they are an object and not too deep."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) and not is_nested_deeper(found, MAX_DEPTH) else None
