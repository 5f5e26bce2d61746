"""The spend rate of each tenant against its own past: for alerts on cost spikes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

MINUTE_S = 60
PAST_MINUTES = 24 * 60
ENOUGH_WINDOWS = 6  # of past that a rate is compared with: less says little
LEAST_MICROUSD = 10_000  # spent in the window: a cent or more
MAX_TENANTS = 1000  # with rates of their own
OTHER = "other"  # all further ones


class Spike(NamedTuple):
    """What a tenant spent in the last window, beside the mean of its windows before."""

    tenant: str
    ratio: float
    microusd: int
    mean_microusd: float


class _Minutes:
    """The spend of one tenant by minutes since 1970, oldest first."""

    __slots__ = ("spent", "total")

    def __init__(self) -> None:
        self.spent: deque[tuple[int, int]] = deque()
        self.total = 0

    def add(self, minute: int, microusd: int) -> None:
        if self.spent and self.spent[-1][0] >= minute:  # a record that was written late counts now
            at, before = self.spent.pop()
            self.spent.append((at, before + microusd))
        else:
            self.forget(minute - PAST_MINUTES)  # also where no objective ever looks at it
            self.spent.append((minute, microusd))
        self.total += microusd

    def forget(self, before: int) -> None:
        while self.spent and self.spent[0][0] < before:
            self.total -= self.spent.popleft()[1]

    def since(self, minute: int) -> int:
        recent = 0
        for at, microusd in reversed(self.spent):
            if at < minute:
                break
            recent += microusd
        return recent


class SpendRates:
    """Bounded: a day of minutes, for so many tenants."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._tenants: dict[str, _Minutes] = {}

    def add(self, tenant: str, microusd: int) -> None:
        if microusd > 0:
            self._minutes(tenant).add(int(self._clock() // MINUTE_S), microusd)

    def restore(self, spent: Iterable[tuple[int, str, int]]) -> None:
        """After a start: minutes since 1970, tenants and micro-dollars."""
        for minute, tenant, microusd in sorted(spent):
            self._minutes(tenant).add(minute, microusd)

    def spike(self, window_s: float, tenant: str | None = None) -> Spike | None:
        """The largest of all tenants, or of one; None: none has spent enough, or for long enough."""
        length = max(1, round(window_s / MINUTE_S))
        now = int(self._clock() // MINUTE_S)
        names = self._tenants if tenant is None else {tenant} & self._tenants.keys()
        found = [one for name in list(names) if (one := self._spike(name, now, length)) is not None]
        return max(found, key=lambda one: one.ratio, default=None)

    def _spike(self, name: str, now: int, length: int) -> Spike | None:
        minutes = self._tenants[name]
        minutes.forget(now - PAST_MINUTES)
        if not minutes.spent:
            del self._tenants[name]
            return None
        begin = now - length + 1
        windows = (begin - minutes.spent[0][0]) / length
        recent = minutes.since(begin)
        if windows < ENOUGH_WINDOWS or recent < LEAST_MICROUSD:
            return None
        mean = (minutes.total - recent) / windows
        return Spike(name, recent / mean, recent, mean)

    def _minutes(self, tenant: str) -> _Minutes:
        name = tenant if tenant in self._tenants or len(self._tenants) < MAX_TENANTS else OTHER
        return self._tenants.setdefault(name, _Minutes())
