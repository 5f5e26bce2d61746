"""The live use of one key or tenant, and what keeps a request out of its limits. Pure: time is an argument."""

from __future__ import annotations

from typing import Literal, NamedTuple

from penstock.gateway.keys.identity import Limits
from penstock.gateway.limits.account import AccountUse
from penstock.gateway.limits.period import Period
from penstock.gateway.limits.reservation import Charge, RateLimitState
from penstock.gateway.limits.sliding_window import WINDOW_US, SlidingWindow

Owner = Literal["key", "tenant"]
OPEN_WAIT_US = 1_000_000  # until an open request may have ended: nobody knows when it does


class Instant(NamedTuple):
    """Now, on the two clocks that limits need."""

    us: int  # monotonic
    unix_us: int
    period: Period


class Obstacle(NamedTuple):
    """A limit into which a request does not fit now."""

    owner: Owner
    limit: str  # a field of Limits
    most: int
    used: int  # settled and reserved
    asked: int
    wait_us: int  # until it fits; while only open requests are in its way, the earliest possible
    open: bool = False  # only open requests are in its way


class Meter:
    """Requests count from their start for 60 seconds; tokens from their reservation until 60 seconds after their
    settlement, since they may be spent at any time in between; money from its reservation on, and then on the day and
    in the month of its settlement."""

    __slots__ = (
        "day",
        "day_spent",
        "month",
        "month_spent",
        "open",
        "open_microusd",
        "open_tokens",
        "requests",
        "tokens",
    )

    def __init__(self) -> None:
        self.requests = SlidingWindow()
        self.tokens = SlidingWindow()  # settled
        self.open = 0
        self.open_tokens = 0
        self.open_microusd = 0
        self.day = self.month = 0
        self.day_spent = self.month_spent = 0

    def roll(self, period: Period) -> None:
        """Forget what was spent on earlier days. Call it before anything that counts money."""
        if self.day != period.day:
            self.day, self.day_spent = period.day, 0
            if self.month != period.month:
                self.month, self.month_spent = period.month, 0

    def reserve(self, charge: Charge, now: Instant) -> None:
        self.requests.add(1, now.us)
        self.open += 1
        self.open_tokens += charge.tokens
        self.open_microusd += charge.microusd

    def settle(self, reserved: Charge, charge: Charge, now: Instant) -> None:
        self.open -= 1
        self.open_tokens -= reserved.tokens
        self.open_microusd -= reserved.microusd
        if charge.tokens:
            self.tokens.add(charge.tokens, now.us)
        self.roll(now.period)
        self.day_spent += charge.microusd
        self.month_spent += charge.microusd

    def cancel(self, reserved: Charge, at: int, now: Instant) -> None:
        """What was reserved at that time never began: it does not count as a request either."""
        self.settle(reserved, Charge(), now)
        self.requests.remove(1, at)

    def obstacles(self, owner: Owner, limits: Limits, charge: Charge, now: Instant) -> list[Obstacle]:
        """Empty: it fits. The charge must fit into an unused limit."""
        found = []
        if (most := limits.requests_per_minute) is not None and (used := self.requests.total(now.us)) >= most:
            wait = self.requests.wait_us(used + 1 - most, now.us)
            found.append(Obstacle(owner, "requests_per_minute", most, used, 1, wait))
        if (most := limits.concurrent_requests) is not None and self.open >= most:
            found.append(Obstacle(owner, "concurrent_requests", most, self.open, 1, OPEN_WAIT_US, open=True))
        if (most := limits.tokens_per_minute) is not None and charge.tokens:
            settled = self.tokens.total(now.us)
            used = settled + self.open_tokens
            if (excess := used + charge.tokens - most) > 0:
                wait, only_open = self._token_wait(settled, excess, now.us)
                found.append(Obstacle(owner, "tokens_per_minute", most, used, charge.tokens, wait, only_open))
        if charge.microusd:
            found += self._money_obstacles(owner, limits, charge.microusd, now)
        return found

    def _token_wait(self, settled: int, excess: int, now: int) -> tuple[int, bool]:
        """How long until `excess` tokens are free, and whether that depends on open requests alone."""
        if excess <= settled:  # however the open requests end
            return self.tokens.wait_us(excess, now), False
        if excess <= self.open_tokens:
            return OPEN_WAIT_US, True
        return max(OPEN_WAIT_US, self.tokens.wait_us(excess - self.open_tokens, now)), False

    def _money_obstacles(self, owner: Owner, limits: Limits, microusd: int, now: Instant) -> list[Obstacle]:
        self.roll(now.period)
        found = []
        for limit, most, spent, ends in (
            ("microusd_per_day", limits.microusd_per_day, self.day_spent, now.period.day_ends),
            ("microusd_per_month", limits.microusd_per_month, self.month_spent, now.period.month_ends),
        ):
            if most is not None and spent + self.open_microusd + microusd > most:
                only_open = spent + microusd <= most
                wait = OPEN_WAIT_US if only_open else max(1, ends * 1_000_000 - now.unix_us)
                found.append(Obstacle(owner, limit, most, spent + self.open_microusd, microusd, wait, only_open))
        return found

    def request_state(self, limits: Limits, now: Instant) -> RateLimitState | None:
        if (most := limits.requests_per_minute) is None:
            return None
        used = self.requests.total(now.us)
        return RateLimitState(most, max(0, most - used), self.requests.reset_us(now.us))

    def token_state(self, limits: Limits, now: Instant) -> RateLimitState | None:
        if (most := limits.tokens_per_minute) is None:
            return None
        used = self.tokens.total(now.us) + self.open_tokens
        reset = WINDOW_US if self.open_tokens else self.tokens.reset_us(now.us)
        return RateLimitState(most, max(0, most - used), reset)

    def use(self, now: Instant) -> AccountUse:
        self.roll(now.period)
        return AccountUse(
            requests=self.requests.total(now.us),
            settled_tokens=self.tokens.total(now.us),
            reserved_tokens=self.open_tokens,
            open_requests=self.open,
            settled_microusd_day=self.day_spent,
            settled_microusd_month=self.month_spent,
            reserved_microusd=self.open_microusd,
        )

    def idle(self, now: Instant) -> bool:
        """Whether nothing counts any more."""
        self.roll(now.period)
        return not (self.open or self.requests.total(now.us) or self.tokens.total(now.us) or self.month_spent)
