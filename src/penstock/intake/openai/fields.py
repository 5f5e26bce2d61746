"""What the schemas are made of: a base that refuses what it does not know, and the types several of them share."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

MAX_INT = 2**31 - 1
MAX_STOPS = 4
MAX_PROMPTS = 2048
MAX_MEMBERS = 1024  # of any object in a body: keeps the errors of one, and the time to find them, few
MAX_KWARGS_DEPTH = 16
MAX_ARGUMENTS_DEPTH = 128
LONGEST_NAME = 64  # of an unknown field, as errors repeat it

MODEL = "The model, as `GET /v1/models` names it."


def wrong(text: str, param: str | None = None) -> PydanticCustomError:
    """To raise in a validator: `text` continues a sentence that begins with the field's path. `param` names a field of
    the model that is checked as a whole."""
    return PydanticCustomError("field", "{text}", {"text": text, "param": param})


class Strict(BaseModel):
    """No field it does not know, no "1" for 1, no true for 1; 1 for 1.0 is fine."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, value: Any) -> Any:
        """Before all else: a misspelt field says more than the one that is missing for it."""
        if isinstance(value, dict):
            known = {field.alias or name for name, field in cls.model_fields.items()}
            for name in value:
                if name not in known:
                    shown = name[:LONGEST_NAME] or '""'
                    close = difflib.get_close_matches(shown, known, n=1, cutoff=0.7)
                    raise wrong("is not a known field" + (f"; did you mean {close[0]}?" if close else ""), shown)
        return value


# --- one of several shapes


# Mark the branches of unions in an error's location, where they are of no interest to a client.
STRING, STRINGS, TOKENS, TOKEN_LISTS, PARTS = "<string>", "<strings>", "<tokens>", "<token lists>", "<parts>"


def shaped(choose: Callable[[Any], str | None], expected: str) -> Discriminator:
    """Takes the branch that `choose` names. Without it, an error would list what each branch has to say."""
    return Discriminator(choose, custom_error_type="shape", custom_error_message=expected)


def by(field: str, default: str | None = None) -> Discriminator:
    """Takes the branch whose tag is the field's value in angle brackets. `default`: where there is no such field."""

    def tag(value: Any) -> str | None:
        given = value.get(field, default) if isinstance(value, dict) else None
        return f"<{given}>" if isinstance(given, str) else None

    tag.__name__ = field  # for the error
    return Discriminator(tag)


def only(kind: str, value: Any, what: str) -> Any:
    """For a model of one `type`, ahead of all other checks: of another type, it is the type that is wrong."""
    if isinstance(value, dict) and isinstance(given := value.get("type"), str) and given != kind:
        raise wrong(f'is "{given[:LONGEST_NAME]}", which is not supported: only {what} are', "type")
    return value


def text_or_parts(value: Any) -> str | None:
    return STRING if isinstance(value, str) else PARTS if isinstance(value, list) else None


def _text_or_list(value: Any) -> str | None:
    return STRING if isinstance(value, str) else STRINGS if isinstance(value, list) else None


def _prompt_shape(value: Any) -> str | None:
    if isinstance(value, str):
        return STRING
    if not isinstance(value, list):
        return None
    first = value[0] if value else ""
    return TOKENS if isinstance(first, int) else TOKEN_LISTS if isinstance(first, list) else STRINGS


TokenId = Annotated[int, Field(ge=0, le=MAX_INT)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]

_Stop = Annotated[str, Field(min_length=1)]
Stop = Annotated[
    Annotated[_Stop, Tag(STRING)] | Annotated[list[_Stop], Field(max_length=MAX_STOPS, fail_fast=True), Tag(STRINGS)],
    shaped(_text_or_list, "a string or a list of strings"),
]

_PROMPT_LIST = Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)
# What is to be completed or embedded: one text, several, or the same as token ids.
Prompts = Annotated[
    Annotated[str, Tag(STRING)]
    | Annotated[list[str], _PROMPT_LIST, Tag(STRINGS)]
    | Annotated[TokenIds, Tag(TOKENS)]
    | Annotated[list[TokenIds], _PROMPT_LIST, Tag(TOKEN_LISTS)],
    shaped(_prompt_shape, "a string, a list of strings, a list of token ids or a list of such lists"),
]


def each(given: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """The single prompts in what a field of type Prompts holds, in order."""
    if isinstance(given, str):
        return [given]
    texts = [item for item in given if isinstance(item, str | list)]
    return texts or [[item for item in given if isinstance(item, int)]]


# --- objects of the client's own making

_TokenKey = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,9})$")]
LogitBias = Annotated[
    dict[_TokenKey, Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=MAX_MEMBERS, json_schema_extra={"additionalProperties": False}),
]
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]

_RESERVED = ("messages", "tools", "add_generation_prompt", "continue_final_message")


def _check_kwargs(value: dict[str, Any]) -> dict[str, Any]:
    for name in value:
        if name in _RESERVED or name.endswith("_token"):
            raise wrong(f"must not set {name[:LONGEST_NAME]}: the server does")
    if deeper(value, MAX_KWARGS_DEPTH):
        raise wrong(f"is nested more than {MAX_KWARGS_DEPTH} levels deep")
    return value


def deeper(value: Any, levels: int) -> bool:
    """Whether it has more levels of objects and lists than that. Walks without recursion."""
    level: list[Any] = [value]
    for _ in range(levels):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(level)


def _check_arguments(value: dict[str, Any]) -> dict[str, Any]:
    if deeper(value, MAX_ARGUMENTS_DEPTH):
        raise wrong(f"is nested more than {MAX_ARGUMENTS_DEPTH} levels deep")
    return value


# Of a call that was made before: chat templates write them as JSON.
Arguments = Annotated[dict[str, Any], AfterValidator(_check_arguments)]


def read_arguments(text: str) -> dict[str, Any] | None:
    """Those of a call, if they are an object and not too deep."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) and not deeper(found, MAX_ARGUMENTS_DEPTH) else None


TemplateKwargs = Annotated[dict[str, Any], AfterValidator(_check_kwargs)]
