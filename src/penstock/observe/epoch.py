"""The instant a server counts time from, on both clocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class Epoch(NamedTuple):
    monotonic: float
    unix: float

    @classmethod
    def now(cls, clock: Callable[[], float] = time.monotonic) -> Epoch:
        return cls(clock(), time.time())

    def micros(self, t: float) -> int:
        """Microseconds since the epoch, which is how the API gives an instant."""
        return round((t - self.monotonic) * 1e6)

    def unix_ns(self, t: float) -> int:
        return round((self.unix + t - self.monotonic) * 1e9)
