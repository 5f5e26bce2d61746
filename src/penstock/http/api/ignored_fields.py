"""The rule for fields that Penstock does not act on: values that ask for nothing are taken, all others refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from penstock.http.api.fields import field_error

_NEVER = "not supported"


@dataclass(frozen=True, slots=True, eq=False)  # `typing` takes equal ones for the same, and 0 equals False
class IgnoredField:
    """Stands behind a field's type in `Annotated[Any, ...]`: takes null and the values in `accepts`."""

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


# --- of both of OpenAI's APIs

STREAM_OPTIONS = {
    "include_obfuscation": IgnoredField((False,)),
}

# Names a client gives to things of its own, for OpenAI's books: any string is taken and nothing is done with it. The
# cache key is one of them. To OpenAI it is a hint which machine may have the prefix and never changes an answer; here
# prefixes are found without hints. What keeps prefixes apart is `cache_salt`.
LABELS = {
    "user": "The client's name for its end user. Taken for compatibility, not used.",
    "safety_identifier": "The client's name for its end user. Taken for compatibility, not used.",
    "prompt_cache_key": "The client's name for requests that begin alike. Not needed here: cached prefixes are found "
    "by their tokens. Taken for compatibility, not used.",
}
