"""Delays between attempts: exponential with full jitter, at least what the last answer asked for (Retry-After)."""

from __future__ import annotations

import random
from collections.abc import Callable

FIRST_DELAY_S, LONGEST_DELAY_S = 0.25, 8.0


def delay_s(rounds: int, retry_after_s: float | None = None, draw: Callable[[], float] = random.random) -> float:
    """Before round `rounds` (1: the first repetition) of a chain of attempts. `draw` is uniform in [0, 1)."""
    longest = min(FIRST_DELAY_S * 2.0 ** (rounds - 1), LONGEST_DELAY_S)
    return max(longest * draw(), retry_after_s or 0.0)
