"""Tokens recently given to a deployment: a decaying sum over about the last minute."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

DECAY_S = 60.0  # after which a token counts 1/e


class RecentWork:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens = 0.0
        self._at = clock()

    @property
    def tokens(self) -> float:
        return self._tokens * math.exp((self._at - self._clock()) / DECAY_S)

    def add(self, tokens: int) -> None:
        self._tokens, self._at = self.tokens + tokens, self._clock()
