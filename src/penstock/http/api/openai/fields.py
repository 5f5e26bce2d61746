"""Types that several of the schemas share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, Tag

from penstock.flow.tools import nested_deeper
from penstock.http.api.fields import LONGEST_NAME, MAX_INT, MAX_MEMBERS, wrong
from penstock.http.parse.unions import BRANCH, Either

MAX_STOPS = 4
MAX_PROMPTS = 2048
MAX_TOKEN_IDS = 1 << 20  # of a prompt: more than any context
MAX_KWARGS_DEPTH = 16

TokenId = Annotated[int, Field(ge=0, le=MAX_INT)]
TokenIds = Annotated[
    list[TokenId],
    Field(min_length=1, max_length=MAX_TOKEN_IDS, fail_fast=True),
    AfterValidator(lambda ids: ids),  # a step in Python, between two lists of many: others can run
]

_Stop = Annotated[str, Field(min_length=1)]
Stop = Annotated[
    _Stop | Annotated[list[_Stop], Field(max_length=MAX_STOPS, fail_fast=True)], Either("a string or a list of strings")
]
STOP = Field(None, description=f"Text that ends the answer, and is not part of it. Up to {MAX_STOPS}.")
SEED = Field(None, ge=-(2**63), le=2**63 - 1, description="The same seed gives the same answer. Default: a fresh one.")
IGNORE_EOS = Field(None, description="Extension. Go on behind the model's own end.")

_STRING, _STRINGS, _TOKENS, _TOKEN_LISTS = (BRANCH + name for name in ("string", "strings", "tokens", "token lists"))


def _shape(value: Any) -> str | None:
    if isinstance(value, str):
        return _STRING
    if not isinstance(value, list):
        return None
    first = value[0] if value else ""
    return _TOKENS if isinstance(first, int) else _TOKEN_LISTS if isinstance(first, list) else _STRINGS


_PROMPT_LIST = Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)
# What is to be completed or embedded: one text, several, or the same as token ids.
Prompts = Annotated[
    Annotated[str, Tag(_STRING)]
    | Annotated[list[str], _PROMPT_LIST, Tag(_STRINGS)]
    | Annotated[TokenIds, Tag(_TOKENS)]
    | Annotated[list[TokenIds], _PROMPT_LIST, Tag(_TOKEN_LISTS)],
    Discriminator(
        _shape,
        custom_error_type="shape",
        custom_error_message="a string, a list of strings, a list of token ids or a list of such lists",
    ),
]


def each(given: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """The single prompts in what a field of type Prompts holds, in order."""
    if isinstance(given, str):
        return [given]
    if isinstance(given[0], int):
        return [given]
    return list(given)


def stops(given: str | list[str] | None) -> tuple[str, ...]:
    """The single texts in what a field of type Stop holds."""
    return (given,) if isinstance(given, str) else tuple(given or ())


def _not_zero(value: int) -> int:
    if value == 0:
        raise wrong("must not be 0")
    return value


Truncation = Annotated[
    int, Field(ge=-1, le=MAX_INT, json_schema_extra={"not": {"const": 0}}), AfterValidator(_not_zero)
]
TRUNCATE = Field(
    None,
    description="Extension. Keep only so many tokens of a prompt, the last ones; -1: as many as the context holds "
    "beside the answer. Default: a prompt that is too long is refused.",
)

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
    if nested_deeper(value, MAX_KWARGS_DEPTH):
        raise wrong(f"is nested more than {MAX_KWARGS_DEPTH} levels deep")
    return value


TemplateKwargs = Annotated[dict[str, Any], AfterValidator(_check_kwargs)]
