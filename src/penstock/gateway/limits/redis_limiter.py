"""The limiter of several servers, which share their state in Redis.

Reservations belong to the lease of their server, which a heartbeat renews. When a server dies, its lease ends and its
reservations with it; what they may have used counts for another minute. A server that was cut off, or a Redis that lost
its data, gets the open reservations again with the next heartbeat.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from msgspec.structs import replace

from penstock.errors import LimitsUnavailable
from penstock.gateway.keys.identity import Identity, Limits
from penstock.gateway.limits.account import Account, AccountUse, accounts_of
from penstock.gateway.limits.counts import LimiterCounts
from penstock.gateway.limits.headers import rate_limit_headers, tightest
from penstock.gateway.limits.limiter import Spend, UsageHistory
from penstock.gateway.limits.local_limiter import LocalLimiter
from penstock.gateway.limits.meter import Obstacle, Owner
from penstock.gateway.limits.period import Period
from penstock.gateway.limits.redis_store import LIMITS, TIMEOUT_S, RedisStore, ReserveReply, StoreUnavailable
from penstock.gateway.limits.rejection import check_possible, rejection
from penstock.gateway.limits.reservation import Charge, RateLimitState, Reservation
from penstock.gateway.limits.sliding_window import WINDOW_US

logger = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
LEASE_S = 10.0
WARM_UP_S = 3.0  # after Redis was away: until every living server has registered its open requests again
LEDGER_TIMEOUT_S = 5.0
MAX_ATTEMPTS = 5  # of a reservation that needs its accounts seeded or its lease renewed first
MAX_UNSENT = 100_000  # settlements that wait for Redis; beyond, the ledger alone has them


class Unsent(NamedTuple):
    """A settlement that Redis may not have."""

    reservation: Reservation
    charge: Charge
    never_began: bool = False


class RedisLimiter:
    def __init__(
        self,
        url: str,
        *,
        unavailable: str = "closed",
        timeout_s: float = TIMEOUT_S,
        lease_s: float = LEASE_S,
        heartbeat_s: float = HEARTBEAT_S,
        warm_up_s: float = WARM_UP_S,
        clock: Callable[[], int] | None = None,
    ) -> None:
        """`unavailable`: the setting `limits_unavailable`. `clock` replaces Redis' own in tests, in microseconds."""
        self.counts = LimiterCounts()
        self._store = RedisStore(url, secrets.token_hex(8), timeout_s, clock)
        self._fails_open = unavailable == "open"
        self._lease_us, self._warm_up_us, self._heartbeat_s = round(lease_s * 1e6), round(warm_up_s * 1e6), heartbeat_s
        self._local = LocalLimiter()  # while Redis is away and requests are let through
        self._history: UsageHistory | None = None
        self._open: dict[str, Reservation] = {}
        self._unsent: deque[Unsent] = deque(maxlen=MAX_UNSENT)
        self._seeding: dict[Account, asyncio.Task[None]] = {}
        self._heartbeat: asyncio.Task[None] | None = None
        self._closed = False
        self._renewing = asyncio.Lock()
        self._numbers = count()

    @property
    def available(self) -> bool:
        return self._store.available

    async def start(self, history: UsageHistory | None) -> None:
        """Starts without Redis too: `limits_unavailable` says what becomes of requests until it answers."""
        self._history = history
        await self._beat()
        self._heartbeat = asyncio.create_task(self._beat_forever(), name="limits heartbeat")

    async def close(self) -> None:
        self._closed = True  # the client of Redis may lose a cancellation that comes while it reads
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            await asyncio.gather(self._heartbeat, return_exceptions=True)
        with suppress(StoreUnavailable):
            await self._send_unsent()
        await self._store.close()

    async def reserve(self, identity: Identity, request: str, charge: Charge) -> Reservation:
        check_possible(identity, charge)
        reservation = Reservation(self._next_id(), request, identity.tenant, identity.key, charge)
        if not self._store.available:
            return await self._reserve_without_store(identity, request, charge)
        try:
            reply = await self._reserve(reservation, identity)
        except (StoreUnavailable, LimitsUnavailable):
            self._unsent.append(Unsent(reservation, Charge(), never_began=True))  # it may have been executed
            return await self._reserve_without_store(identity, request, charge)
        except asyncio.CancelledError:
            self._unsent.append(Unsent(reservation, Charge(), never_began=True))
            raise
        requests, tokens = _states(_limits(identity), reply)
        if reply.outcome == "rejected":
            obstacles = [_obstacle(identity, reply.now, detail) for detail in reply.details]
            self.counts.reject(obstacles)
            raise rejection(identity, obstacles, rate_limit_headers(requests, tokens))
        reservation.requests, reservation.tokens = requests, tokens
        self._open[reservation.id] = reservation
        self.counts.reserve(charge)
        return reservation

    async def settle(self, reservation: Reservation, charge: Charge, *, never_began: bool = False) -> None:
        if reservation.settled:
            return
        self.counts.settle(reservation.charge, charge)
        if self._open.pop(reservation.id, None) is not None:
            reservation.settled = True
            settlement = Unsent(reservation, charge, never_began)
        else:  # made without Redis, which shall know what was used
            await self._local.settle(reservation, charge, never_began=never_began)
            settlement = Unsent(replace(reservation, id=self._next_id()), charge, never_began)
        if not self._store.available:
            self._unsent.append(settlement)
            return
        try:
            await self._store.settle(settlement.reservation, charge, never_began=never_began)
        except StoreUnavailable:
            self._unsent.append(settlement)
        except asyncio.CancelledError:
            self._unsent.append(settlement)
            raise

    def headers(self, reservation: Reservation) -> dict[str, str]:
        return rate_limit_headers(reservation.requests, reservation.tokens)

    async def use(self, accounts: Sequence[Account]) -> list[AccountUse]:
        try:
            return await self._store.use(accounts) if accounts else []
        except StoreUnavailable:
            raise _unavailable() from None

    async def _reserve(self, reservation: Reservation, identity: Identity) -> ReserveReply:
        for _ in range(MAX_ATTEMPTS):
            reply = await self._store.reserve(
                reservation,
                _limits(identity),
                warm_up_us=self._warm_up_us,
                from_ledger=self._history is not None,
            )
            if reply.outcome == "warming":
                await asyncio.sleep(reply.details[0][0] / 1e6)
            elif reply.outcome == "lapsed":
                await self._renew()
            elif reply.outcome == "unseeded":
                accounts = accounts_of(identity.tenant, identity.key)
                await asyncio.gather(*(self._seed(accounts[number], reply.now) for number in reply.details[0]))
            elif reply.outcome in ("reserved", "rejected"):
                return reply
        raise StoreUnavailable

    async def _reserve_without_store(self, identity: Identity, request: str, charge: Charge) -> Reservation:
        """By this server's own count, if requests are let through."""
        if not self._fails_open:
            raise _unavailable()
        reservation = await self._local.reserve(identity, request, charge)
        self.counts.unchecked += 1
        self.counts.reserve(charge)
        return reservation

    async def _seed(self, account: Account, now_us: int) -> None:
        """Tell Redis what the ledger knows of an account. Once, however many requests wait for it."""
        task = self._seeding.get(account)
        if task is None:
            task = self._seeding[account] = asyncio.create_task(self._read_and_seed(account, now_us / 1e6))
            task.add_done_callback(lambda _: self._seeding.pop(account, None))
        await asyncio.shield(task)

    async def _read_and_seed(self, account: Account, now: float) -> None:
        assert self._history is not None
        try:
            async with asyncio.timeout(LEDGER_TIMEOUT_S):
                spends = await self._history.spend(now, account)
                settled = await self._history.settled_since(now - WINDOW_US / 1e6, account)
        except Exception as error:  # of whatever database the ledger has
            logger.warning("limits: the ledger cannot be read: %s", type(error).__name__)
            raise _unavailable() from error
        spend = next(iter(spends), Spend(account.tenant, account.key, 0, 0))
        tokens = [one.tokens for one in settled]
        await self._store.seed(account, spend.day_microusd, spend.month_microusd, len(tokens), sum(tokens))

    async def _beat_forever(self) -> None:
        while not self._closed:
            await asyncio.sleep(self._heartbeat_s)
            await self._beat()

    async def _beat(self) -> None:
        try:
            await self._renew()
            await self._send_unsent()
        except StoreUnavailable:
            pass  # logged by the store; the next beat tries again
        except Exception:  # a server without a heartbeat would lose its reservations
            logger.exception("limits: the heartbeat failed")

    async def _renew(self) -> None:
        async with self._renewing:  # many requests may find the lease lapsed; the first registers, for all
            if await self._store.renew(self._lease_us):
                for reservation in list(self._open.values()):
                    if not reservation.settled:
                        await self._store.register(reservation)

    async def _send_unsent(self) -> None:
        while self._unsent:
            one = self._unsent[0]
            await self._store.settle(one.reservation, one.charge, never_began=one.never_began)
            if self._unsent and self._unsent[0] is one:
                self._unsent.popleft()

    def _next_id(self) -> str:
        return f"{self._store.server}-{next(self._numbers)}"


def _unavailable() -> LimitsUnavailable:
    error = LimitsUnavailable("the limits of this API key cannot be checked now; try again later")
    error.retry_after_s = 2 * HEARTBEAT_S
    return error


def _limits(identity: Identity) -> list[Limits]:
    """Of the accounts that requests count for, in their order."""
    return [identity.key_limits, identity.tenant_limits] if identity.key else [identity.tenant_limits]


def _states(limits: Sequence[Limits], reply: ReserveReply) -> tuple[RateLimitState | None, RateLimitState | None]:
    requests, tokens = [], []
    for one, (requests_used, requests_reset, tokens_used, tokens_reset) in zip(limits, reply.uses, strict=True):
        if (most := one.requests_per_minute) is not None:
            requests.append(RateLimitState(most, max(0, most - requests_used), requests_reset))
        if (most := one.tokens_per_minute) is not None:
            tokens.append(RateLimitState(most, max(0, most - tokens_used), tokens_reset))
    return tightest(requests), tightest(tokens)


def _obstacle(identity: Identity, now_us: int, detail: Sequence[int]) -> Obstacle:
    account, limit, most, used, asked, wait, only_open = detail
    if wait < 0:  # a budget
        period = Period.at(now_us / 1e6)
        ends = period.day_ends if LIMITS[limit] == "microusd_per_day" else period.month_ends
        wait = max(1, ends * 1_000_000 - now_us)
    owner: Owner = "key" if identity.key and account == 0 else "tenant"
    return Obstacle(owner, LIMITS[limit], most, used, asked, wait, bool(only_open))
