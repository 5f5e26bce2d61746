"""`keep_alive`: how long a model stays loaded after a request. A pinned model, such as the only one of a server, always
stays loaded: every value is accepted; 0, which asks to unload it, gets a warning."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from penstock.http.api.fields import field_error
from penstock.settings.models import parse_duration

UNLOAD_WARNING = "keep_alive: 0 asks to unload the model, which stays loaded"

# Go's notation of durations: "1h30m", "-1s"; a bare number is in seconds. The number of digits is bounded.
_PATTERN = r"^[+-]?([0-9]{1,12}(\.[0-9]{0,12})?(ns|us|µs|ms|s|m|h)){1,8}$|^[+-]?[0-9]{1,12}(\.[0-9]{0,12})?$"
_DURATION = re.compile(_PATTERN)


class _Duration:
    def check(self, value: Any) -> Any:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None or number or (isinstance(value, str) and _DURATION.fullmatch(value)):
            return value
        raise field_error("must be a number of seconds, or a duration such as 5m, 1h30m or -1")

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "pattern": _PATTERN}, {"type": "number"}, {"type": "null"}]}


KeepAlive = Annotated[Any, _Duration()]


def idle_seconds(keep_alive: str | float) -> float | None:
    """Seconds that an idle model stays loaded; None: for ever."""
    if isinstance(keep_alive, str):
        return parse_duration(keep_alive)
    return None if keep_alive < 0 else float(keep_alive)


def asks_to_unload(keep_alive: str | float | None) -> bool:
    """Whether the duration is zero, in any unit."""
    if keep_alive is None:
        return False
    if not isinstance(keep_alive, str):
        return keep_alive == 0
    return all(float(number) == 0 for number in re.findall(r"[0-9.]+", keep_alive))
