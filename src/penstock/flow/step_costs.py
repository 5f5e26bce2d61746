"""What a step costs by the number of tokens it computes: measured at start, read by scheduler and backend.

Kernels compute tokens in tiles: on a CPU two tokens may cost hardly more than one, and four less than three. The
scheduler corrects the price of drafts by the time that steps with drafts really take: with a long context, or on a busy
machine, it is another than at the start.

With look-ahead, a step that is planned only after the last one is settled takes longer by the host's work in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise

LEAST_SLOPE = 0.005  # of the cost of one token, for each token more than the largest step measured
SMOOTHING = 0.05  # weight of the newest step
LEAST_SCALE, MOST_SCALE = 0.5, 4.0
STEADY = 0.05  # of the time of a step: differences of this size hardly correct anything
# How fast a correction is forgotten in steps without drafts: while those are too dear, none are measured.
RECOVERY = 0.01
FIRST_WAIT_S = 0.0005  # the host's work between two steps, before it is measured


class StepCosts:
    """Seconds of a step. No step is dearer than a larger one: where it was measured to be, the machine was busy, or one
    more token fills a tile. Between two sizes that were measured costs lie on a line, and beyond the last on that
    through the first and the last."""

    def __init__(self, measured: Mapping[int, float], draft_s: float = 0.0) -> None:
        """`measured`: seconds by tokens, for 1 token and at least one larger number. `draft_s`: of the proposer, for
        one draft of all rows, where that does not depend on their number."""
        self.measured = dict(sorted(measured.items()))
        self._draft_s = draft_s
        self.wait_s = 0.0  # that a step takes longer which was not planned ahead
        self.plans_ahead = False
        self.scale = 1.0  # what drafts really cost, as a multiple
        self._plain_s: dict[int, float] = {}  # by rows, of late: steps without drafts
        self._extra = self._expected = 0.0  # of late: what drafts have added to steps, and what they should have
        sizes = list(self.measured)
        costs = list(accumulate(reversed(self.measured.values()), min))[::-1]
        self._seconds = [costs[0]] * 2  # [0] of an empty step, which is not made
        for (before, low), (after, high) in pairwise(zip(sizes, costs, strict=True)):
            slope = (high - low) / (after - before)
            self._seconds += [low + slope * step for step in range(1, after - before + 1)]
        self._slope = max(LEAST_SLOPE * costs[0], (costs[-1] - costs[0]) / (sizes[-1] - sizes[0]))

    def seconds(self, tokens: int) -> float:
        last = len(self._seconds) - 1
        return self._seconds[tokens] if tokens <= last else self._seconds[last] + self._slope * (tokens - last)

    def added(self, tokens: int, drafts: int) -> float:
        """What drafts add to the time of a step with these tokens: a share of that."""
        return self.scale * self._expected_share(tokens, drafts)

    def waiting(self, tokens: int) -> float:
        """What it adds that a step with these tokens is not planned ahead: a share of its time."""
        return self.wait_s / self.seconds(tokens)

    def plan_ahead(self) -> None:
        """Steps are planned before the last one is settled, unless a sequence waits."""
        self.plans_ahead, self.wait_s = True, FIRST_WAIT_S

    def _expected_share(self, tokens: int, drafts: int) -> float:
        before = self.seconds(tokens)
        proposing = self._draft_s * -(-drafts // tokens)  # depth by depth
        return (self.seconds(tokens + drafts) - before + proposing) / before

    def observe(self, rows: int, drafts: int, seconds: float, ahead: bool = False) -> None:
        """A step of `rows` that decode, and `drafts`, has taken so long. `ahead`: it was planned ahead."""
        plain = self._plain_s.get(rows)
        if self.plans_ahead and not ahead:
            if not drafts and plain is not None:
                waited = min(max(0.0, seconds - plain), plain)
                self.wait_s += SMOOTHING * (waited - self.wait_s)
            seconds -= self.wait_s
        if not drafts and self.plans_ahead and not ahead:
            return
        if not drafts:
            self._plain_s[rows] = seconds if plain is None else plain + SMOOTHING * (seconds - plain)
            self._extra -= RECOVERY * self._extra
            self._expected -= RECOVERY * self._expected
        elif plain is not None:
            expected = self._expected_share(rows, drafts)
            extra = min(seconds / plain - 1.0, MOST_SCALE * (expected + STEADY))
            self._extra += SMOOTHING * (extra - self._extra)
            self._expected += SMOOTHING * (expected - self._expected)
        scale = (self._extra + STEADY) / (self._expected + STEADY)
        self.scale = min(MOST_SCALE, max(LEAST_SCALE, scale))
