"""The state of limits in Redis: one Lua script per operation, so that each is atomic. Redis' own clock decides.

No operation waits longer than its timeout; a failed one makes the store unavailable until a renewal succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from penstock.errors import InvalidSetting
from penstock.gateway.keys.identity import Limits
from penstock.gateway.limits.account import Account, AccountUse, accounts_of
from penstock.gateway.limits.reservation import Charge, Reservation

logger = logging.getLogger(__name__)

PREFIX = "penstock:limits:"
TIMEOUT_S = 3.0  # of an operation, the wait for a connection in a burst included
CONNECTIONS = 16
SCRIPTS = ("reserve", "settle", "renew", "register", "seed", "use")
LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrent_requests", "microusd_per_day", "microusd_per_month")


class StoreUnavailable(Exception):
    """Redis does not answer, or not in time. The operation may have been executed."""


class ReserveReply(NamedTuple):
    outcome: str  # reserved, rejected, unseeded, lapsed, warming, abandoned
    now: int  # microseconds
    uses: list[list[int]]  # of each account: requests and their reset, tokens and their reset
    details: list[list[int]]  # obstacles, or what the outcome needs


class RedisStore:
    def __init__(self, url: str, server: str, timeout_s: float = TIMEOUT_S, clock: Callable[[], int] | None = None):
        """`server` is the name of this server among those that share Redis. `clock` replaces Redis' own in tests."""
        self.server = server
        self.available = True
        self._timeout_s = timeout_s
        self._clock = clock or (lambda: 0)
        try:
            pool: BlockingConnectionPool = BlockingConnectionPool.from_url(
                url,
                max_connections=CONNECTIONS,
                timeout=timeout_s,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                retry=Retry(NoBackoff(), 1),  # an idle connection may be gone; every script can be repeated
            )
        except ValueError:  # its message quotes the URL, which holds a password
            raise InvalidSetting("redis must be a URL such as redis://host:6379/0", param="redis") from None
        self._address = _without_password(url)
        self._client = Redis(connection_pool=pool)
        shared = _read("account")
        self._scripts = {name: self._client.register_script(f"{shared}\n{_read(name)}") for name in SCRIPTS}

    async def close(self) -> None:
        """Hand the lease back: what is still open here is over."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._client.zrem(f"{PREFIX}servers", self.server)
        except (RedisError, OSError, TimeoutError):
            pass
        await self._client.aclose()
        await self._client.connection_pool.disconnect()

    async def reserve(
        self, reservation: Reservation, limits: Sequence[Limits], *, warm_up_us: int, from_ledger: bool
    ) -> ReserveReply:
        """`limits` are those of the accounts, in their order. `from_ledger`: accounts must be seeded first."""
        charge = reservation.charge
        bounds = [-1 if most is None else most for one in limits for most in (getattr(one, name) for name in LIMITS)]
        outcome, *rest = await self._run(
            "reserve",
            [f"{PREFIX}servers", f"{PREFIX}state", _done(reservation.id), *_names(reservation)],
            [reservation.id, self.server, charge.tokens, charge.microusd, warm_up_us, int(from_ledger), *bounds],
        )
        return ReserveReply(outcome.decode(), *rest)

    async def settle(self, reservation: Reservation, charge: Charge, *, never_began: bool = False) -> None:
        """Also of a reservation that Redis does not know. `never_began`: it does not count as a request."""
        await self._run(
            "settle",
            [_done(reservation.id), *_names(reservation)],
            [reservation.id, charge.tokens, charge.microusd, int(never_began)],
        )

    async def renew(self, lease_us: int) -> bool:
        """Whether the lease of this server had lapsed: then it must register its open requests again."""
        lapsed, _ = await self._run("renew", [f"{PREFIX}servers", f"{PREFIX}state"], [self.server, lease_us])
        return bool(lapsed)

    async def register(self, reservation: Reservation) -> None:
        charge = reservation.charge
        await self._run(
            "register",
            [_done(reservation.id), *_names(reservation)],
            [reservation.id, self.server, charge.tokens, charge.microusd],
        )

    async def seed(self, account: Account, day_microusd: int, month_microusd: int, requests: int, tokens: int) -> None:
        await self._run("seed", [f"{PREFIX}state", _name(account)], [day_microusd, month_microusd, requests, tokens])

    async def use(self, accounts: Sequence[Account]) -> list[AccountUse]:
        replies = await self._run("use", [f"{PREFIX}servers", *map(_name, accounts)], [])
        names = AccountUse.__struct_fields__
        return [AccountUse(**dict(zip(names, reply, strict=True))) if reply else AccountUse() for reply in replies]

    async def _run(self, script: str, keys: list[str], values: list[Any]) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await self._scripts[script](keys=keys, args=[self._clock(), *values])
        except (RedisError, OSError, TimeoutError) as error:
            if self.available:
                reason = str(error) or type(error).__name__
                logger.warning("limits: Redis at %s does not answer: %s", self._address, reason)
            self.available = False
            raise StoreUnavailable from error
        if not self.available:
            logger.info("limits: Redis at %s answers again", self._address)
        self.available = True
        return reply


def _name(account: Account) -> str:
    """Escaped, so that no name of a tenant or key can name another account."""
    tenant, key = quote(account.tenant, safe=""), quote(account.key, safe="")
    return f"{PREFIX}key:{tenant}:{key}" if account.key else f"{PREFIX}tenant:{tenant}"


def _names(reservation: Reservation) -> list[str]:
    return [_name(account) for account in accounts_of(reservation.tenant, reservation.key)]


def _done(id: str) -> str:
    return f"{PREFIX}done:{id}"


def _read(name: str) -> str:
    return resources.files("penstock.gateway.limits").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
