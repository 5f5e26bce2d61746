"""A circuit breaker: a deployment that keeps failing gets no requests for a while, then one as a probe.

    CLOSED ──failures──► OPEN ──after a pause──► HALF_OPEN ──success──► CLOSED
                           ▲                        │ one probe at a time
                           └───────failure──────────┘ the pause doubles

A deployment that asks for a pause (429 with Retry-After) is HELD for that time, which counts as no failure. If that is
its answer to a probe, the next probe waits for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum

WINDOW = 20  # last attempts that are looked at
MIN_FAILURES = 5
FAILURE_SHARE = 0.5  # of the window
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0
LONGEST_HOLD_S = 300.0  # more is not believed


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    HELD = "held"


class CircuitBreaker:
    """Counts the outcomes of one deployment's attempts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._outcomes: deque[bool] = deque(maxlen=WINDOW)  # True: it failed
        self._pause_s = FIRST_PAUSE_S
        self._opened: float | None = None  # when it last opened; None: it is closed
        self._held_until = 0.0
        self._probing = False

    @property
    def state(self) -> BreakerState:
        now = self._clock()
        if self._opened is not None and now < self._opened + self._pause_s:
            return BreakerState.OPEN
        if now < self._held_until:
            return BreakerState.HELD
        return BreakerState.CLOSED if self._opened is None else BreakerState.HALF_OPEN

    @property
    def blocked(self) -> str | None:
        """Why no request may be sent now; None: one may."""
        match self.state:
            case BreakerState.OPEN:
                return f"circuit open for {self.wait_s:.1f} s"
            case BreakerState.HALF_OPEN if self._probing:
                return "circuit half open, a probe is under way"
            case BreakerState.HELD:
                return f"asked for a pause of {self.wait_s:.1f} s"
        return None

    @property
    def wait_s(self) -> float:
        """Until a request may be sent again; 0: now."""
        until = self._held_until if self._opened is None else max(self._held_until, self._opened + self._pause_s)
        return max(0.0, until - self._clock())

    def begin(self) -> None:
        """A request is sent. While half open, it is the probe."""
        self._probing = self.state is BreakerState.HALF_OPEN

    def succeed(self) -> None:
        if self._opened is not None:
            self._opened, self._pause_s = None, FIRST_PAUSE_S
            self._outcomes.clear()
        self._probing = False
        self._outcomes.append(False)

    def fail(self) -> None:
        if self._opened is not None:
            if self._probing or self.state is BreakerState.HALF_OPEN:  # else: a request from before it opened
                self._opened, self._pause_s = self._clock(), min(2 * self._pause_s, LONGEST_PAUSE_S)
            self._probing = False
            return
        self._outcomes.append(True)
        failures = sum(self._outcomes)
        if failures >= MIN_FAILURES and failures >= FAILURE_SHARE * len(self._outcomes):
            self._opened = self._clock()

    def abandon(self) -> None:
        """A request ended without an outcome: its client has gone."""
        self._probing = False

    def hold(self, seconds: float) -> None:
        """The deployment asks for a pause."""
        self._probing = False
        self._held_until = max(self._held_until, self._clock() + min(seconds, LONGEST_HOLD_S))
