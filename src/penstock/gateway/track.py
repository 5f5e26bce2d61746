"""What the router remembers of a deployment: its circuit breaker, its work of late, and how fast it answers."""

from __future__ import annotations

import time
from collections.abc import Callable

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
        self.busy_since = 0.0  # when it last got work while it had none
        self.decisions = 0
        self.failures = 0
        self.stale_load = False  # at the last decision
        self.stale_prefix = False

    def observe(self, tokens: int, ttft_s: float) -> None:
        """An answer began after `ttft_s`, with `tokens` to compute before it."""
        self.ttft_s = _average(self.ttft_s, ttft_s)
        if tokens >= LEAST_TOKENS and ttft_s > 0:
            self.prefill_per_s = _average(self.prefill_per_s, tokens / ttft_s)


def _average(known: float | None, latest: float) -> float:
    return latest if known is None else known + LEARNING * (latest - known)
