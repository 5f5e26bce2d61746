"""The prompts of completions and embeddings: texts or token ids, one or several."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, Tag

from penstock.http.api.fields import MAX_INT, field_error
from penstock.http.api.generation_fields import TokenIds
from penstock.http.parse.unions import BRANCH

MAX_PROMPTS = 2048

_STRING, _STRINGS, _TOKENS, _TOKEN_LISTS = (BRANCH + name for name in ("string", "strings", "tokens", "token lists"))


def _shape(value: Any) -> str | None:
    if isinstance(value, str):
        return _STRING
    if not isinstance(value, list):
        return None
    first = value[0] if value else ""
    return _TOKENS if isinstance(first, int) else _TOKEN_LISTS if isinstance(first, list) else _STRINGS


_PROMPT_LIST = Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)
# To complete or embed: one text, several, or token ids likewise.
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


def single_prompts(prompts: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """The prompts in a field of type Prompts, in order."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts[0], int):
        return [prompts]
    return list(prompts)


def _not_zero(value: int) -> int:
    if value == 0:
        raise field_error("must not be 0")
    return value


Truncation = Annotated[
    int, Field(ge=-1, le=MAX_INT, json_schema_extra={"not": {"const": 0}}), AfterValidator(_not_zero)
]
TRUNCATE = Field(
    None,
    description="Extension. Keep only so many tokens of a prompt, the last ones; -1: as many as the context holds "
    "beside the answer. Default: a prompt that is too long is refused.",
)
