"""How long the sequences in the queue of one tenant have waited, by reason."""

from __future__ import annotations

from penstock.flow import record


class WaitTotals:
    """One running total per reason, which every plan adds to; a sequence keeps the totals as of when it was queued. So
    wait times cost nothing per waiting sequence."""

    __slots__ = ("_reason", "_since", "_totals")

    def __init__(self, now: float) -> None:
        self._totals = [0.0] * len(record.WAITS)
        self._reason = record.STEP  # why the last plan admitted none, or not all, of the tenant's sequences
        self._since = now  # that plan

    def note(self, reason: int, now: float) -> None:
        self._totals[self._reason] += now - self._since
        self._reason, self._since = reason, now

    def marks(self, now: float) -> tuple[float, ...]:
        """The totals as of now: with the time since the last plan, which the next plan will add."""
        marks = self._totals.copy()
        marks[self._reason] += now - self._since
        return tuple(marks)
