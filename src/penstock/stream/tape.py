"""Text that arrives in pieces, for parsers that are generators: they yield when they have to wait for more.

A parser reads as if all of the text were there; where the pieces are cut cannot change what it finds.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeVar

Found = TypeVar("Found")
Waiting = Generator[None, None, Found]

SPACE = " \t\r\n"


class Tape:
    def __init__(self) -> None:
        self.text = ""
        self.place = 0  # what is before it has been read
        self.ended = False
        self.mark: int | None = None  # what is behind it may be wanted again

    def feed(self, text: str) -> None:
        read = self.place if self.mark is None else self.mark
        self.text = self.text[read:] + text
        self.place -= read
        if self.mark is not None:
            self.mark = 0

    @property
    def rest(self) -> str:
        return self.text[self.place :]

    def take(self, end: int) -> str:
        """What stands up to `end`, which is read with it."""
        taken, self.place = self.text[self.place : end], end
        return taken

    def peek(self) -> Waiting[str]:
        """The next character; "" at the end."""
        while self.place == len(self.text) and not self.ended:
            yield
        return self.text[self.place : self.place + 1]

    def skip_space(self) -> Waiting[str]:
        """The next character that is no white space, which has been read; "" at the end."""
        while (char := (yield from self.peek())) and char in SPACE:
            self.place += 1
        return char

    def skip(self, word: str) -> Waiting[bool]:
        """Whether the text goes on with this word, which is read then."""
        while len(self.text) - self.place < len(word) and word.startswith(self.rest) and not self.ended:
            yield
        if not self.text.startswith(word, self.place):
            return False
        self.place += len(word)
        return True


def find_first(text: str, words: Sequence[str], start: int = 0) -> tuple[int, str] | None:
    """The earliest of these words; of those that start together the longest, as one reading the whole would say."""
    places = [(place, word) for word in words if (place := text.find(word, start)) >= 0]
    return min(places, key=lambda found: (found[0], -len(found[1])), default=None)


def overlap(text: str, words: Sequence[str]) -> int:
    """Length of the longest end of `text` that is a proper beginning of one of these words."""
    return max((_overlap(text, word) for word in words), default=0)


def _overlap(text: str, word: str) -> int:
    return next((size for size in range(min(len(text), len(word) - 1), 0, -1) if text.endswith(word[:size])), 0)
