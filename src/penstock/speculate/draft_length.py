"""How many of the proposed tokens are drafted: those that are right often enough to pay their price.

How often is measured, for each sequence and each kind of proposal. While a sequence has little of its own, the
measurements of all sequences count.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.flow.step_costs import StepCosts

MEMORY = 48.0  # tokens of the past that count; older ones fade
PRIOR = 4.0  # what a sequence takes over from the others counts as this many tokens of its own


class Rates:
    """How often drafted tokens were right, by kind of proposal."""

    def __init__(self, first: Sequence[float]) -> None:
        """`first`: before there are measurements."""
        self._first = first
        self._right = [0.0] * len(first)
        self._tried = [0.0] * len(first)

    def add(self, kind: int, drafted: int, accepted: int) -> None:
        """Tokens behind a wrong one were not tried."""
        tried = accepted + (accepted < drafted)
        fade = min(1.0, MEMORY / (self._tried[kind] + tried))
        self._right[kind] = (self._right[kind] + accepted) * fade
        self._tried[kind] = (self._tried[kind] + tried) * fade

    def rate(self, kind: int, prior: Rates | None = None) -> float:
        before = self._first[kind] if prior is None else prior.rate(kind)
        return (self._right[kind] + PRIOR * before) / (self._tried[kind] + PRIOR)


def choose_length(costs: StepCosts, rate: float, most: int, rows: int, drafts: int) -> int:
    """How many tokens to draft, each right with probability `rate` if those before it are, in a step of `rows` that
    draw and `drafts` of others."""
    length, right = 0, rate
    while length < most and right > costs.draft_price(rows, drafts + length):
        length += 1
        right *= rate
    return length
