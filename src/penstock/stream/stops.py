"""Stop strings. They may span tokens, so text that could still become one is held back."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self.held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """The text that is now safe to show. Once a stop string is complete, `matched` names it."""
        if not self.stops:
            return text
        self.held += text
        places = [(place, stop) for stop in self.stops if (place := self.held.find(stop)) >= 0]
        if places:
            # The earliest wins; of those that start together the longest, as one reading the whole text would say.
            place, self.matched = min(places, key=lambda found: (found[0], -len(found[1])))
            shown, self.held = self.held[:place], ""
            return shown
        keep = max(_overlap(self.held, stop) for stop in self.stops)
        shown, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
        return shown

    def flush(self) -> str:
        """The sequence ended otherwise: what was held back is ordinary text after all."""
        shown, self.held = self.held, ""
        return shown


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
