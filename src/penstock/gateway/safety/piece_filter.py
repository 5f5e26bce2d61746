"""Text that is spelled differently from what it reads as: rules look at what it reads as, and clients get the spelling.

Each character that rules see has a piece of the text: `\\u0073` in JSON is an s, as is an s after a zero-width space.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.stream.output_filter import FilterState

Split = Callable[[str], tuple[list[str], str]]  # pieces of one character each, and the beginning of a piece at the end


class Inner(Protocol):
    """A PartFilter without a short way."""

    @property
    def hit(self) -> str | None: ...

    def push(self, text: str) -> str: ...

    def flush(self) -> str: ...


class PieceFilter:
    """A PartFilter over another one."""

    def __init__(self, inner: Inner, split: Split, read: Callable[[str], str]) -> None:
        """`read` gives the character of a piece, always one."""
        self.state: FilterState | None = None
        self._inner = inner
        self._split = split
        self._read = read
        self._unread = ""  # the beginning of a piece
        self._held: list[str] = []  # the pieces of what is held back

    @property
    def hit(self) -> str | None:
        return self._inner.hit

    @property
    def holds_text(self) -> bool:
        return bool(self._unread or self._held)

    def push(self, text: str) -> str:
        pieces, self._unread = self._split(self._unread + text)
        return self._show(pieces, self._inner.push("".join(map(self._read, pieces))))

    def flush(self) -> str:
        rest, self._unread = list(self._unread), ""  # half a piece is plain text
        shown = self._show(rest, self._inner.push("".join(rest))) if rest else ""
        return shown if self.hit is not None else shown + self._show([], self._inner.flush())

    def _show(self, pieces: list[str], shown: str) -> str:
        held = [*self._held, *pieces]
        self._held = held[len(shown) :]
        return "".join(held[: len(shown)])
