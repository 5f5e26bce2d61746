"""Typed reads from the loosely typed mappings that models describe themselves with (config.json, GGUF metadata)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from penstock.errors import ModelInvalid


class Values:
    """A mapping whose values are checked as they are read. A value of None is as good as absent."""

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self.values = values
        self.where = where  # for messages: the file
        self.prefix = prefix

    def integer(self, key: str, default: int | None = None, *, least: int = 1, most: int = 2**31 - 1) -> int:
        value = self._get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.invalid(key, f"must be an integer in [{least}, {most}], got {value!r}")
        return value

    def optional_integer(self, key: str, *, least: int = 0) -> int | None:
        return None if self.raw(key) is None else self.integer(key, least=least)

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise self.invalid(key, f"must be a number, got {value!r}")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.number(key, default)
        if value <= 0:
            raise self.invalid(key, f"must be above 0, got {value}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.invalid(key, f"must be true or false, got {value!r}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.invalid(key, f"must be text, got {value!r}")
        return value

    def items(self, key: str) -> list[Any]:
        """A list; empty if absent."""
        value = self._get(key, [])
        if not isinstance(value, list):
            raise self.invalid(key, f"must be a list, got {value!r}")
        return value

    def numbers(self, key: str) -> tuple[float, ...]:
        items = self.items(key)
        if not items or not all(isinstance(item, int | float) and math.isfinite(item) and item > 0 for item in items):
            raise self.invalid(key, "must be a list of numbers above 0")
        return tuple(float(item) for item in items)

    def part(self, key: str) -> Values:
        """A mapping inside the mapping; empty if absent."""
        value = self._get(key, {})
        if not isinstance(value, Mapping):
            raise self.invalid(key, f"must be a mapping, got {value!r}")
        return Values(value, self.where, f"{self.prefix}{key}.")

    def raw(self, key: str) -> Any:
        """The value as it is; None if absent."""
        return self.values.get(key)

    def invalid(self, key: str, what: str) -> ModelInvalid:
        return ModelInvalid(f"{self.where}: {self.prefix}{key} {what}", param="model")

    def _get(self, key: str, default: Any) -> Any:
        value = self.raw(key)
        if value is not None:
            return value
        if default is None:
            raise self.invalid(key, "is missing")
        return default
