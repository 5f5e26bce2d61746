"""What a limiter has counted since the start of the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from penstock.gateway.limits.meter import Obstacle
from penstock.gateway.limits.reservation import Charge


class LimiterCounts:
    def __init__(self) -> None:
        self.reservations = 0
        self.settlements = 0
        self.reserved_tokens = 0
        self.settled_tokens = 0
        self.excess_tokens = 0  # settled beyond what was reserved
        self.reserved_microusd = 0
        self.settled_microusd = 0
        self.rejected: Counter[tuple[str, str]] = Counter()  # requests, by owner and limit
        self.unchecked = 0  # requests admitted without the store

    def reserve(self, charge: Charge) -> None:
        self.reservations += 1
        self.reserved_tokens += charge.tokens
        self.reserved_microusd += charge.microusd

    def settle(self, reserved: Charge, charge: Charge) -> None:
        self.settlements += 1
        self.settled_tokens += charge.tokens
        self.settled_microusd += charge.microusd
        self.excess_tokens += max(0, charge.tokens - reserved.tokens)

    def reject(self, obstacles: Sequence[Obstacle]) -> None:
        """Counts each limit that is in the way."""
        for one in obstacles:
            self.rejected[one.owner, one.limit] += 1
