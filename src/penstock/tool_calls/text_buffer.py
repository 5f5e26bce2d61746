"""Text that arrives in pieces, for incremental parsers.

A parser is a generator: it yields when it needs more text, and returns its result. It reads as if the whole text were
there, so the places where the text is cut into pieces do not change what it finds.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeVar

Result = TypeVar("Result")
Parser = Generator[None, None, Result]

WHITESPACE = " \t\r\n"


class Malformed(Exception):
    """The text is not of the syntax that its beginning suggests."""


class Truncated(Exception):
    """The text ended in the middle."""


class TextBuffer:
    def __init__(self) -> None:
        self.text = ""
        self.position = 0  # of the next character to read
        self.ended = False  # no more text will come
        self.checkpoint: int | None = None  # a position that the parser may go back to

    def feed(self, text: str) -> None:
        start = self.position if self.checkpoint is None else self.checkpoint
        self.text = self.text[start:] + text
        self.position -= start
        if self.checkpoint is not None:
            self.checkpoint = 0

    @property
    def rest(self) -> str:
        return self.text[self.position :]

    def take(self, end: int) -> str:
        """Read up to the position `end`."""
        taken, self.position = self.text[self.position : end], end
        return taken

    def peek(self) -> Parser[str]:
        """The next character; "" at the end of the text."""
        while self.position == len(self.text) and not self.ended:
            yield
        return self.text[self.position : self.position + 1]

    def skip_whitespace(self) -> Parser[str]:
        """Read white space, and return the character behind it without reading it; "" at the end of the text."""
        while (char := (yield from self.peek())) and char in WHITESPACE:
            self.position += 1
        return char

    def skip(self, word: str) -> Parser[bool]:
        """Read `word` if it comes next; return whether it did."""
        while len(self.text) - self.position < len(word) and word.startswith(self.rest) and not self.ended:
            yield
        if not self.text.startswith(word, self.position):
            return False
        self.position += len(word)
        return True


def find_first(text: str, words: Sequence[str], start: int = 0) -> tuple[int, str] | None:
    """Position and text of the earliest of these words; of those that start together, of the longest."""
    places = [(place, word) for word in words if (place := text.find(word, start)) >= 0]
    return min(places, key=lambda found: (found[0], -len(found[1])), default=None)


def overlap(text: str, words: Sequence[str]) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of one of these words."""
    return max((_overlap(text, word) for word in words), default=0)


def _overlap(text: str, word: str) -> int:
    return next((size for size in range(min(len(text), len(word) - 1), 0, -1) if text.endswith(word[:size])), 0)
