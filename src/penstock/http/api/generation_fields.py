"""Fields of generation requests that several APIs share: stop strings, seed, logit bias, metadata, template
arguments."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from penstock.flow.tools import is_nested_deeper
from penstock.http.api.fields import (
    MAX_INT,
    field_error,
)
from penstock.http.parse.error_text import MAX_SHOWN_NAME
from penstock.http.parse.json_body import MAX_MEMBERS
from penstock.http.parse.long_lists import InPieces
from penstock.http.parse.unions import ByJsonType

MAX_STOPS = 4
MAX_TOKEN_IDS = 1 << 20  # more than any context
MAX_KWARGS_DEPTH = 16

TokenId = Annotated[int, Field(ge=0, le=MAX_INT)]
TokenIds = Annotated[
    list[TokenId],
    Field(min_length=1, max_length=MAX_TOKEN_IDS, fail_fast=True),
    InPieces(MAX_TOKEN_IDS),
]

_Stop = Annotated[str, Field(min_length=1)]
Stop = Annotated[
    _Stop | Annotated[list[_Stop], Field(max_length=MAX_STOPS, fail_fast=True)],
    ByJsonType("a string or a list of strings"),
]
STOP = Field(None, description=f"Text that ends the answer, and is not part of it. Up to {MAX_STOPS}.")
SEED = Field(None, ge=-(2**63), le=2**63 - 1, description="The same seed gives the same answer. Default: a fresh one.")
IGNORE_EOS = Field(None, description="Extension. Go on behind the model's own end.")
SPECULATION = Field(
    None,
    description="Extension. false: draft no tokens for this answer, which is the same either way. Default: true.",
)


def stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    """The values of a field of type Stop."""
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


# --- objects with names of the client's choice

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
            raise field_error(f"must not set {name[:MAX_SHOWN_NAME]}: the server sets it")
    if is_nested_deeper(value, MAX_KWARGS_DEPTH):
        raise field_error(f"is nested more than {MAX_KWARGS_DEPTH} levels deep")
    return value


TemplateKwargs = Annotated[dict[str, Any], AfterValidator(_check_kwargs)]
