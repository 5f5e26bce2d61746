"""How many of the proposed tokens are drafted: those that are right often enough to pay their price.

How often is measured, for each sequence and each kind of proposal. While a sequence has little of its own, the
measurements of all sequences count.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.flow.step_costs import StepCosts

MEMORY = 48.0  # tokens of the past that count; older ones fade
PRIOR = 8.0  # what a sequence takes over from the others counts as this many tokens of its own


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


def choose_lengths(
    costs: StepCosts, rows: int, proposals: Sequence[tuple[float, int]], most: int | None = None
) -> list[int]:
    """How many tokens to draft of each proposal, in a step of `rows` that draw. A proposal is how often its tokens are
    right if those before are, and how many there are. The likeliest tokens are drafted: as many of them as save the
    most time."""
    chances = [(rate**place, index) for index, (rate, most) in enumerate(proposals) for place in range(1, most + 1)]
    chances.sort(key=lambda chance: -chance[0])  # of one proposal they are in order
    chosen, most_saved, right = 0, 0.0, 0.0
    for count, (chance, _) in enumerate(chances[:most], 1):
        right += chance
        if (saved := right - rows * costs.added(rows, count)) > most_saved:
            chosen, most_saved = count, saved
    lengths = [0] * len(proposals)
    for _, index in chances[:chosen]:
        lengths[index] += 1
    return lengths
