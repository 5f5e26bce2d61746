"""`think`: whether the model reasons before it answers, as variables of its chat template."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from penstock.errors import InvalidRequest
from penstock.http.api.fields import field_error
from penstock.prompt.chat_format import ChatFormat

LEVELS = ("low", "medium", "high")


class _Level:
    def check(self, value: Any) -> Any:
        if value is None or isinstance(value, bool) or (isinstance(value, str) and value in LEVELS):
            return value
        raise field_error(f"must be true, false, {', '.join(LEVELS[:-1])} or {LEVELS[-1]}")

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": [None, True, False, *LEVELS]}


Think = Annotated[Any, _Level()]


def can_think(chat_format: ChatFormat | None) -> bool:
    return chat_format is not None and (chat_format.reasoning is not None or can_switch(chat_format))


def can_switch(chat_format: ChatFormat) -> bool:
    """Whether the chat template has a variable for it."""
    return chat_format.switch is not None or "reasoning_effort" in chat_format.template.variables


def effort_of(think: bool | str | None, chat_format: ChatFormat | None) -> tuple[str | None, tuple[str, ...]]:
    """`reasoning_effort` of flow.Request, and warnings. Raises InvalidRequest if the model does not reason."""
    if think is None:
        return None, ()
    if chat_format is None or not can_think(chat_format):
        if think is False:
            return None, ()
        raise InvalidRequest("think is not supported: this model does not think aloud", param="think")
    if can_switch(chat_format):
        return ("none" if think is False else "medium" if think is True else str(think)), ()
    if think is True:
        return None, ()
    return None, (f"think: {str(think).lower()} has no effect: this model always thinks, as much as it likes",)
