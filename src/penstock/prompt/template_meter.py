"""Counts the work of one rendering, and stops it when its budget is spent.

A unit is about a microsecond of Python, or the copying of a short text. A context variable holds the meter of the
current rendering: it is no variable of the template, and no object within the template's reach refers to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any, NamedTuple

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

MAX_WORK = 500_000  # units of one rendering; a conversation of a thousand messages needs some ten thousand
MAX_PASSES = 32  # over each character of the messages, in addition
CHARS_PER_UNIT = 64
ITEMS_PER_UNIT = 32  # of a list
ENTRIES_PER_UNIT = 8  # of a dict
BITS_PER_UNIT = 128  # of an integer
COMPARISONS_PER_UNIT = 1024  # of characters
MAX_NUMBER = 10_000  # as an argument of a filter or a string method: widths, counts, precisions
MAX_BITS = 4096  # of an integer that is computed
MAX_DEPTH = 256  # of containers in each other: hashing a tuple recurses in C, without a bound of its own

_NOTHING: dict[str, str] = {}
# Lazy values that a template can have; it has no iterators.
LAZY = (range, type(_NOTHING.keys()), type(_NOTHING.values()), type(_NOTHING.items()))
_TEXTS, _LISTS, _HOLDING = (str, bytes), (list, tuple, range), (list, tuple, *LAZY[1:])  # tuples: unions are slow


class TemplateNamespace(Namespace):
    """Jinja's `namespace(...)`, with a second record of its attributes for the meter: templates see only Jinja's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.attributes = dict(*args, **kwargs)
        super().__init__(object.__getattribute__(self, "attributes"))

    def __setitem__(self, name: str, value: Any) -> None:
        object.__getattribute__(self, "attributes")[name] = value
        super().__setitem__(name, value)


class BudgetExceeded(SecurityError):
    """The template has spent its units."""


class Extent(NamedTuple):
    """The size of a value with everything in it."""

    items: int
    depth: int
    chars: int


class WorkMeter:
    __slots__ = ("left",)

    def __init__(self, units: int) -> None:
        self.left = units

    def charge(self, units: int) -> None:
        if units > 0:  # a negative charge must not refill the budget
            self.left -= units
        if self.left < 0:
            raise BudgetExceeded("the chat template does not come to an end")

    def charge_size(self, value: Any) -> None:
        """For making or looking at a text or container, without its contents."""
        if isinstance(value, _TEXTS):
            self.charge(1 + len(value) // CHARS_PER_UNIT)
        elif isinstance(value, _LISTS):
            self.charge(1 + len(value) // ITEMS_PER_UNIT)
        elif isinstance(value, dict):
            self.charge(1 + len(value) // ENTRIES_PER_UNIT)
        elif isinstance(value, int):
            if value.bit_length() > MAX_BITS:
                raise SecurityError("the number is too large for a chat template")
            self.charge(1 + value.bit_length() // BITS_PER_UNIT)
        else:
            self.charge(1)

    def charge_contents(self, value: Any) -> Extent:
        """For writing a value out, hashing it or comparing it. Containers may hold the same one many times over."""
        if isinstance(value, str):
            self.charge(1 + len(value) // CHARS_PER_UNIT)
            return Extent(1, 1, len(value))
        items = depth = chars = 0
        level: list[Any] = [value]
        while level:
            if depth > MAX_DEPTH:
                raise SecurityError("the chat template nests values too deeply")
            below: list[Any] = []
            for item in level:
                self.charge_size(item)
                if isinstance(item, str):
                    chars += len(item)
                else:
                    below += _inside(item)
            items, depth, level = items + len(level), depth + 1, below
        return Extent(items, depth, chars)

    def check_numbers(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, int) and abs(value) > MAX_NUMBER:
                raise SecurityError("a number is too large for a chat template")

    def charge_indentation(self, lines: int, width: Any) -> None:
        """`width`: a number of spaces, or a text."""
        self.charge(lines * (width if isinstance(width, int) else len(str(width))) // CHARS_PER_UNIT)

    def charge_format(self, pattern: Any, values: Extent) -> None:
        """Each field of the pattern may show all values, padded to a width of four digits at most."""
        if not isinstance(pattern, str):
            return
        if re.search(r"\d{5,}|\*|\{[^}]*\{", pattern.replace("{{", "")):
            raise SecurityError("the format is too wide for a chat template")
        fields = pattern.count("{") + pattern.count("%")
        width = MAX_NUMBER if re.search(r"\d{3}", pattern) else 100
        self.charge(fields * (width + values.chars + values.items * 8) // CHARS_PER_UNIT)

    def charge_replacement(self, text: str, old: Any, new: Any) -> None:
        """`new` replaces `old` at every place."""
        self.charge(text.count(str(old)) * len(str(new)) // CHARS_PER_UNIT)

    def charge_search(self, text: Any, part: Any) -> None:
        """CPython searches short texts forwards in up to len(text) * len(part) steps, long ones in linear time."""
        if isinstance(text, str) and isinstance(part, str):
            long, short = len(text), len(part)
            if long < 2500 or short < 6 or (short < 100 and long < 30_000):
                self.charge(long * short // COMPARISONS_PER_UNIT)

    def charge_scan(self, text: Any, part: Any) -> None:
        """Backwards, or for one of many characters, a search may take len(text) * len(part) steps at any length."""
        if isinstance(text, str) and isinstance(part, str):
            self.charge(len(text) * len(part) // COMPARISONS_PER_UNIT)


def current_meter() -> WorkMeter:
    return METER.get()


METER: ContextVar[WorkMeter] = ContextVar("meter of the rendering")


def _inside(item: Any) -> Iterable[Any]:
    if isinstance(item, dict):
        return [*item.keys(), *item.values()]
    if isinstance(item, _HOLDING):
        return item
    if isinstance(item, TemplateNamespace):  # its representation shows all its attributes
        return _inside(object.__getattribute__(item, "attributes"))
    return ()
