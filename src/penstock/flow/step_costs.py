"""What a step costs by the number of tokens it computes: measured at start, read by scheduler and backend.

The scheduler corrects the price of drafts by the time that steps with drafts really take: with a long context, or on a
busy machine, it is another than at the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

LEAST_SLOPE = 0.005  # of the cost of one token
SMOOTHING = 0.05  # weight of the newest step
LEAST_SCALE, MOST_SCALE = 0.5, 4.0
# How fast a correction is forgotten in steps without drafts: while those are too dear, none are measured.
RECOVERY = 0.005


class StepCosts:
    """Seconds of a step. A measurement is never too low, but the machine may have been busy: costs are the convex curve
    below all of them. Beyond the last it goes on as before it."""

    def __init__(self, measured: Mapping[int, float]) -> None:
        """`measured`: seconds by tokens, for 1 token and at least one larger number."""
        self.measured = dict(sorted(measured.items()))
        self.scale = 1.0  # what drafts really cost, as a multiple
        self._plain_s: dict[int, float] = {}  # by rows, of late: steps without drafts
        hull: list[tuple[int, float]] = []
        for point in self.measured.items():
            while len(hull) > 1 and _slope(hull[-2], point) <= _slope(hull[-2], hull[-1]):
                hull.pop()
            hull.append(point)
        self._seconds = [hull[0][1]] * 2  # [0] of an empty step, which is not made
        self._slope = least = LEAST_SLOPE * hull[0][1]
        for before, after in pairwise(hull):
            self._slope = max(least, _slope(before, after))
            for _ in range(after[0] - before[0]):
                self._seconds.append(self._seconds[-1] + self._slope)

    def seconds(self, tokens: int) -> float:
        last = len(self._seconds) - 1
        return self._seconds[tokens] if tokens <= last else self._seconds[last] + self._slope * (tokens - last)

    def draft_price(self, rows: int, drafts: int = 0) -> float:
        """What one more draft costs in a step of `rows` that draw and `drafts`: a share of the time in which the step
        draws one token. A draft pays off if it is right with a larger probability."""
        before = self.seconds(rows + drafts)
        return self.scale * (self.seconds(rows + drafts + 1) - before) * rows / self.seconds(rows)

    def added(self, tokens: int, drafts: int) -> float:
        """What the drafts of a step have added to the time of its other tokens: a share of that."""
        before = self.seconds(tokens)
        return self.scale * (self.seconds(tokens + drafts) - before) / before

    def observe(self, rows: int, drafts: int, seconds: float) -> None:
        """A step of `rows` that decode, and `drafts`, has taken so long."""
        plain = self._plain_s.get(rows)
        if not drafts:
            self._plain_s[rows] = seconds if plain is None else plain + SMOOTHING * (seconds - plain)
            self.scale += RECOVERY * (1.0 - self.scale)
        elif plain is not None:
            before = self.seconds(rows)
            ratio = (seconds / plain - 1.0) / ((self.seconds(rows + drafts) - before) / before)
            self.scale += SMOOTHING * (min(MOST_SCALE, max(LEAST_SCALE, ratio)) - self.scale)


def _slope(before: tuple[int, float], after: tuple[int, float]) -> float:
    return (after[1] - before[1]) / (after[0] - before[0])
