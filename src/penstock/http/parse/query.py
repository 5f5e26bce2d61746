"""Query strings: known names and values within bounds, or an error that names the parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from starlette.requests import Request

from penstock.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """Checked as declared here; /openapi.json is generated from it."""

    name: str
    description: str
    type: Literal["string", "integer", "number", "boolean", "array"] = "string"  # an array is of strings
    bounds: tuple[float, float] = (0, 0)  # of numbers
    choices: tuple[str, ...] = ()  # of strings; none: any
    default: str | float | None = None

    def openapi(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": self.type}
        if self.type in ("integer", "number"):
            schema |= {"minimum": self.bounds[0], "maximum": self.bounds[1]}
        if self.type == "array":
            schema["items"] = {"enum": list(self.choices)} if self.choices else {"type": "string"}
        elif self.choices:
            schema["enum"] = list(self.choices)
        if self.default is not None:
            schema["default"] = self.default
        return {"name": self.name, "in": "query", "required": False, "description": self.description, "schema": schema}

    def read(self, text: str) -> Any:
        if self.type in ("string", "array"):
            if self.choices and text not in self.choices:
                raise InvalidRequest(f"{self.name} must be one of {', '.join(self.choices)}", param=self.name)
            return text
        if self.type == "boolean":
            if text not in ("true", "false"):
                raise InvalidRequest(f"{self.name} must be true or false", param=self.name)
            return text == "true"
        low, high = self.bounds
        value = _integer(text) if self.type == "integer" else _number(text)
        if not low <= value <= high:  # also false for NaN, which stands for what is not a number
            kind = "an integer" if self.type == "integer" else "a number"
            raise InvalidRequest(f"{self.name} must be {kind} from {low:.15g} to {high:.15g}", param=self.name)
        return value


def read_query(request: Request, parameters: Sequence[Parameter], *, ignore: str | None = None) -> dict[str, Any]:
    """The value or the default of each parameter, by name; of an array, the list of all values (`name` or `name[]`).
    Raises InvalidRequest for unknown names, except those that begin with `ignore`."""
    given, known = dict(request.query_params), {parameter.name: parameter for parameter in parameters}
    arrays: dict[str, list[str]] = {}
    for parameter in parameters:
        if parameter.type == "array":
            names = (parameter.name, f"{parameter.name}[]")
            arrays[parameter.name] = [parameter.read(text) for name in names for text in _all(request, name)]
            given = {name: text for name, text in given.items() if name not in names}
    for name in given:
        if name not in known and not (ignore is not None and name.startswith(ignore)):
            accepted = f"; accepted are {', '.join(known)}" if known else ""
            raise InvalidRequest(f"{name[:64]} is not a known parameter{accepted}", param=name[:64])
    return {
        name: parameter.read(given[name]) if name in given else parameter.default for name, parameter in known.items()
    } | arrays


def _all(request: Request, name: str) -> list[str]:
    return request.query_params.getlist(name)


def _integer(text: str) -> float:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else float("nan")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
