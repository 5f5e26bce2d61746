"""What the router remembers of a deployment: its circuit breaker, its work of late, and how fast it answers."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.flow import Timings
from penstock.gateway.breaker import CircuitBreaker
from penstock.gateway.recent_work import RecentWork

LEARNING = 0.1  # weight of the latest observation
LEAST_TOKENS = 64  # of a prompt that tells how fast prompts are computed


class DeploymentTrack:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.breaker = CircuitBreaker(clock)
        self.recent = RecentWork(clock)
        self.prefill_per_s: float | None = None  # tokens, of those that were queued and not cached
        self.ttft_s: float | None = None
        self.slot_s: float | None = None  # that a sequence runs, from its admission to its end
        self.busy_since = 0.0  # when it last got work while it had none
        self.decisions = 0
        self.failures = 0
        self.stale_load = False  # at the last decision
        self.stale_prefix = False

    def observe(self, tokens: int, timings: Timings) -> None:
        """An answer has ended that had `tokens` to compute before it began. One that waited long for a slot says
        nothing about the speed of that."""
        ttft_s, prefill_s = timings.first_token_s, timings.prefill_s
        if ttft_s is None or prefill_s is None:
            return
        self.ttft_s = _average(self.ttft_s, ttft_s)
        self.slot_s = _average(self.slot_s, prefill_s + (timings.decode_s or 0.0))
        if tokens >= LEAST_TOKENS and ttft_s > 0 and timings.queue_s <= prefill_s:
            self.prefill_per_s = _average(self.prefill_per_s, tokens / ttft_s)


def _average(known: float | None, latest: float) -> float:
    return latest if known is None else known + LEARNING * (latest - known)
