"""Long lists in a schema, validated piece by piece: one call of pydantic's for a million numbers would hold the
interpreter, and so the event loop, for a tenth of a second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, InitErrorDetails, PydanticKnownError, core_schema

PIECE = 8192  # entries: well under a millisecond


@dataclass(frozen=True, slots=True)
class InPieces:
    """Of a list with at most `max_length` entries; the first that is wrong counts."""

    max_length: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(self._validate, handler(source))

    def _validate(self, value: Any, validate: core_schema.ValidatorFunctionWrapHandler) -> Any:
        if type(value) is not list or len(value) <= PIECE:
            return validate(value)
        if len(value) > self.max_length:
            context = {"field_type": "List", "max_length": self.max_length, "actual_length": len(value)}
            raise PydanticKnownError("too_long", context)
        entries: list[Any] = []
        for begin in range(0, len(value), PIECE):
            try:
                entries += validate(value[begin : begin + PIECE])
            except ValidationError as error:
                raise _shift_error(error, begin) from None
        return entries


def _shift_error(error: ValidationError, begin: int) -> ValidationError:
    """The error of a piece, as one of the whole list."""
    first = error.errors(include_url=False)[0]
    (index, *rest) = first["loc"]
    assert isinstance(index, int)
    details = InitErrorDetails(type=first["type"], loc=(begin + index, *rest), input=first["input"])
    if "ctx" in first:
        details["ctx"] = first["ctx"]
    return ValidationError.from_exception_data(error.title, [details])
