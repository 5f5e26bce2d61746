"""Stop strings. They may span tokens, so text that could still become one is held back."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.tool_calls.text_buffer import find_first, overlap


class StopMatcher:
    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """`include`: the stop string is shown with what stands before it."""
        self.stops = tuple(stops)
        self.include = include
        self.held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """The text that is now safe to show. Once a stop string is complete, `matched` names it."""
        if not self.stops:
            return text
        self.held += text
        if found := find_first(self.held, self.stops):
            place, self.matched = found
            shown, self.held = self.held[: place + len(self.matched) * self.include], ""
            return shown
        keep = overlap(self.held, self.stops)
        shown, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
        return shown

    def flush(self) -> str:
        """The sequence ended otherwise: what was held back is ordinary text after all."""
        shown, self.held = self.held, ""
        return shown
