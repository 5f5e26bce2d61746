"""What a routing decision leaves behind: for response headers, the request's record and metrics."""

from __future__ import annotations

import msgspec

MAX_HEADER = 1000  # characters: proxies reject large headers


class Considered(msgspec.Struct, frozen=True):
    """One candidate of a decision."""

    name: str
    chosen: bool
    reason: str
    score: float | None = None  # smaller is better; None: it was not ranked


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Which candidate a request went to, and why."""

    policy: str
    chosen: str | None  # None: no candidate takes requests
    considered: tuple[Considered, ...]  # best first, then those that were not ranked
    warnings: tuple[str, ...] = ()  # signals that are dead or stale

    def summary(self) -> str:
        """`smollm2/1 by prefix: 512 of 600 tokens cached, 0 queued; not smollm2/0: …`"""
        chosen = [f"{one.name} by {self.policy}: {one.reason}" for one in self.considered if one.chosen]
        others = [f"not {one.name}: {one.reason}" for one in self.considered if not one.chosen]
        return "; ".join([*(chosen or [f"none by {self.policy}"]), *others, *self.warnings])


class FailedAttempt(msgspec.Struct, frozen=True):
    """A deployment that was tried first and gave no output."""

    name: str
    code: str  # of the error
    message: str


class RouteRecord(msgspec.Struct):
    """How one client's request found its deployment."""

    decisions: list[Decision] = []
    failures: list[FailedAttempt] = []
    asked: str = ""  # the model that the client named
    reported: int = 0  # decisions that the journal has
    spans: list[tuple[float, float]] = []  # when decisions were made, that the journal does not have

    def header(self) -> str:
        """All of it in one line; empty if there was nothing to decide."""
        parts = [f"{one.name} failed: {one.code}" for one in self.failures]
        text = " | ".join([*parts, *(decision.summary() for decision in self.decisions)])
        line = " ".join(text.encode("ascii", "replace").decode().split())
        return line if len(line) <= MAX_HEADER else line[: MAX_HEADER - 3] + "..."
