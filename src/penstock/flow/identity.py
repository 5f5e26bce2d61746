"""Identity within a server: which model and replica something comes from, and numbers that no two sequences share."""

from __future__ import annotations

import itertools

import msgspec

NUMBERS = 2**32 - 1  # a sequence number is 1 .. NUMBERS: it has 32 bits in step records


class Source(msgspec.Struct, frozen=True, gc=False):
    """One replica of one model. Every event of an engine, every step and every metric belongs to a Source."""

    model: str = ""
    replica: int = 0


UNNAMED = Source()  # where there is only one, and no name is needed


class SequenceNumbers:
    """Gives each sequence of a server its number. One server has one, and all of its pipelines share it: step records
    and the journal name a sequence by its number alone. Any thread may draw."""

    def __init__(self, part: int = 0, parts: int = 1, first: int = 0) -> None:
        """Several processes of a server draw from as many parts of the numbers; `first` of them are left out."""
        self._size = NUMBERS // parts
        self._begin = 1 + part * self._size
        self._count = itertools.count(first)

    def draw(self) -> int:
        return self._begin + next(self._count) % self._size
