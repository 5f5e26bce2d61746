"""Progress reports of a download."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    def __call__(self, what: str, done_bytes: int, total_bytes: int | None) -> None:
        """Called often, from any thread. A new `what` is a new phase; a total of None is not known (yet)."""


def silent(what: str, done_bytes: int, total_bytes: int | None) -> None:
    """Reports nothing."""
