"""The limiter of a single server: all state in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import count

from penstock.gateway.keys.identity import Identity, Limits
from penstock.gateway.limits.account import Account, AccountUse, accounts_of
from penstock.gateway.limits.counts import LimiterCounts
from penstock.gateway.limits.headers import rate_limit_headers, tightest
from penstock.gateway.limits.limiter import UsageHistory
from penstock.gateway.limits.meter import Instant, Meter, Owner
from penstock.gateway.limits.period import DAY_S, Period
from penstock.gateway.limits.rejection import check_possible, rejection
from penstock.gateway.limits.reservation import Charge, Reservation
from penstock.gateway.limits.sliding_window import WINDOW_US


class LocalLimiter:
    """Decides without waiting: its coroutines never suspend, so nothing comes between a check and its reservation."""

    available = True

    def __init__(
        self, clock: Callable[[], int] = time.monotonic_ns, wall_clock: Callable[[], float] = time.time
    ) -> None:
        """`clock` in nanoseconds; `wall_clock` in Unix seconds, for days and months only."""
        self.counts = LimiterCounts()
        self._clock, self._wall_clock = clock, wall_clock
        self._period = Period.at(wall_clock())
        self._meters: dict[Account, Meter] = {}
        self._numbers = count()

    async def start(self, history: UsageHistory | None) -> None:
        """The last minute and what the current month has cost, from the ledger."""
        if history is None:
            return
        now = self._now()
        unix_s = now.unix_us / 1e6
        for request in sorted(await history.settled_since(unix_s - WINDOW_US / 1e6)):
            age_us = max(0, now.unix_us - int(request.time * 1e6))
            for account in accounts_of(request.tenant, request.key):
                meter = self._meter(account)
                meter.requests.add(1, now.us - age_us)
                meter.tokens.add(request.tokens, now.us - age_us)
        for spend in await history.spend(unix_s):
            meter = self._meter(Account(spend.tenant, spend.key))
            meter.roll(now.period)
            meter.day_spent, meter.month_spent = spend.day_microusd, spend.month_microusd

    async def close(self) -> None:
        pass

    async def reserve(self, identity: Identity, request: str, charge: Charge) -> Reservation:
        check_possible(identity, charge)
        now = self._now()
        owners = self._owners(identity)
        obstacles = [
            obstacle for owner, limits, meter in owners for obstacle in meter.obstacles(owner, limits, charge, now)
        ]
        if obstacles:
            self.counts.reject(obstacles)
            requests = tightest(meter.request_state(limits, now) for _, limits, meter in owners)
            tokens = tightest(meter.token_state(limits, now) for _, limits, meter in owners)
            raise rejection(identity, obstacles, rate_limit_headers(requests, tokens))
        for _, _, meter in owners:
            meter.reserve(charge, now)
        self.counts.reserve(charge)
        return Reservation(
            f"{next(self._numbers)}",
            request,
            identity.tenant,
            identity.key,
            charge,
            tightest(meter.request_state(limits, now) for _, limits, meter in owners),
            tightest(meter.token_state(limits, now) for _, limits, meter in owners),
            at_us=now.us,
        )

    async def settle(self, reservation: Reservation, charge: Charge, *, never_began: bool = False) -> None:
        if reservation.settled:
            return
        reservation.settled = True
        now = self._now()
        for account in accounts_of(reservation.tenant, reservation.key):
            if never_began:
                self._meter(account).cancel(reservation.charge, reservation.at_us, now)
            else:
                self._meter(account).settle(reservation.charge, charge, now)
        self.counts.settle(reservation.charge, charge)

    def headers(self, reservation: Reservation) -> dict[str, str]:
        return rate_limit_headers(reservation.requests, reservation.tokens)

    async def use(self, accounts: Sequence[Account]) -> list[AccountUse]:
        now = self._now()
        return [self._meters[account].use(now) if account in self._meters else AccountUse() for account in accounts]

    def _owners(self, identity: Identity) -> list[tuple[Owner, Limits, Meter]]:
        tenant = self._meter(Account(identity.tenant))
        owners: list[tuple[Owner, Limits, Meter]] = [("tenant", identity.tenant_limits, tenant)]
        if identity.key:
            owners.insert(0, ("key", identity.key_limits, self._meter(Account(identity.tenant, identity.key))))
        return owners

    def _meter(self, account: Account) -> Meter:
        meter = self._meters.get(account)
        if meter is None:
            meter = self._meters[account] = Meter()
        return meter

    def _now(self) -> Instant:
        unix_s = self._wall_clock()
        # A clock that is set back brings no budget back, unless by days: then it was wrong before.
        if not -2 * DAY_S <= unix_s - self._period.day_ends < 0:
            self._period = Period.at(unix_s)
            now = Instant(self._clock() // 1000, int(unix_s * 1e6), self._period)
            self._meters = {account: meter for account, meter in self._meters.items() if not meter.idle(now)}
            return now
        return Instant(self._clock() // 1000, int(unix_s * 1e6), self._period)
