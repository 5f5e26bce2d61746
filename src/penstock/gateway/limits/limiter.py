"""The protocol of limiters, what they show, and what they restore from the ledger after a start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from penstock.gateway.keys.identity import Identity
from penstock.gateway.limits.account import Account, AccountUse
from penstock.gateway.limits.counts import LimiterCounts
from penstock.gateway.limits.reservation import Charge, Reservation


class Limiter(Protocol):
    """Holds the limits of keys and tenants. In each window of 60 seconds, requests that were open in it count with what
    they have reserved or, once settled, have used; the sum never exceeds a limit. Money counts on the UTC day and month
    of its settlement.

    Write the ledger's record first, then `settle`, then send the terminal event: a client that has its answer may use
    the freed room at once, and what a limiter restores from the ledger is never less than what was settled.
    """

    counts: LimiterCounts

    @property
    def available(self) -> bool:
        """Whether the store of limits answers. Otherwise `limits_unavailable` says what becomes of requests."""

    async def start(self, history: UsageHistory | None) -> None:
        """Restore what the ledger knows. Call it before the first request."""

    async def close(self) -> None: ...

    async def reserve(self, identity: Identity, request: str, charge: Charge) -> Reservation:
        """Reserve with key and tenant, or with neither. Raises RateLimited and BudgetExhausted, with the time after
        which it may fit, InvalidRequest if it can never fit, or LimitsUnavailable."""

    async def settle(self, reservation: Reservation, charge: Charge, *, never_began: bool = False) -> None:
        """The request has ended and used `charge`; the rest is given back. Raises nothing; a second call does nothing.
        `never_began`: it was not dispatched, used nothing and does not count as a request."""

    def headers(self, reservation: Reservation) -> dict[str, str]:
        """`x-ratelimit-*` as OpenAI sends them."""

    async def use(self, accounts: Sequence[Account]) -> list[AccountUse]:
        """Of each account, in order. Raises LimitsUnavailable."""


class Settlement(NamedTuple):
    """A request in the ledger."""

    time: float  # Unix time of the record, not of the request's start
    tenant: str
    key: str
    tokens: int


class Spend(NamedTuple):
    """What was spent on the current UTC day and in the current month."""

    tenant: str
    key: str  # "": all keys of the tenant
    day_microusd: int
    month_microusd: int


class UsageHistory(Protocol):
    """The ledger, as limiters read it."""

    async def settled_since(self, time: float, account: Account | None = None) -> Iterable[Settlement]:
        """All requests with a record at or after a Unix time, or those of an account."""

    async def spend(self, now: float, account: Account | None = None) -> Iterable[Spend]:
        """For each key and for each tenant that spent money in the month of a Unix time, or of one account."""
