"""The part of a URL behind the question mark: each name known, each value in its bounds, or an error that says it."""

from __future__ import annotations

from starlette.requests import Request

from penstock.errors import InvalidRequest


class Query:
    def __init__(self, request: Request, *names: str) -> None:
        self._values = dict(request.query_params)
        for name in self._values:
            if name not in names:
                known = f"; there are {', '.join(names)}" if names else ""
                raise InvalidRequest(f"{name[:64]} is not a known parameter{known}", param=name[:64])

    def text(self, name: str) -> str | None:
        return self._values.get(name) or None

    def one_of(self, name: str, *choices: str) -> str | None:
        value = self.text(name)
        if value is not None and value not in choices:
            raise InvalidRequest(f"{name} must be one of {', '.join(choices)}", param=name)
        return value

    def integer(self, name: str, low: int, high: int) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not value.isascii() or not value.isdecimal() or len(value) > 15 or not low <= int(value) <= high:
            raise InvalidRequest(f"{name} must be an integer from {low} to {high}", param=name)
        return int(value)

    def number(self, name: str, low: float, high: float) -> float | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            found = float(value)
        except ValueError:
            found = float("nan")
        if not low <= found <= high:
            raise InvalidRequest(f"{name} must be a number from {low:g} to {high:g}", param=name)
        return found
