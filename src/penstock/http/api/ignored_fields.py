"""Fields that Penstock does not support: neutral values are accepted and ignored, all others are rejected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from penstock.http.api.fields import field_error

_NEVER = "not supported"


@dataclass(frozen=True, slots=True, eq=False)  # `typing` caches equal annotations, and 0 == False
class IgnoredField:
    """In `Annotated[Any, ...]`: accepts null and the values in `accepts`, which have no effect."""

    accepts: tuple[Any, ...] = ()
    refusal: str = _NEVER

    @property
    def advice(self) -> str:
        taken = " or ".join(msgspec.json.encode(value).decode() for value in self.accepts)
        return f"is {self.refusal}: leave it out" + (f", or send {taken}" if taken else "")

    def check(self, value: Any) -> Any:
        if value is None or any(type(value) is type(accepted) and value == accepted for accepted in self.accepts):
            return value
        raise field_error(self.advice)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {
            "enum": [None, *self.accepts],
            "description": f"{self.refusal.capitalize()}. Only these values are taken.",
        }


# --- fields of both of OpenAI's APIs

STREAM_OPTIONS = {
    "include_obfuscation": IgnoredField((False,)),
}

# Labels for OpenAI's accounting: any string is accepted and ignored. To OpenAI the cache key is a hint which machine
# may have the prefix, and never changes an answer; here the prefix cache needs no hint. `cache_salt` separates
# prefixes.
LABELS = {
    "user": "The client's name for its end user. Taken for compatibility, not used.",
    "safety_identifier": "The client's name for its end user. Taken for compatibility, not used.",
    "prompt_cache_key": "The client's name for requests that begin alike. Not needed here: cached prefixes are found "
    "by their tokens. Taken for compatibility, not used.",
}
