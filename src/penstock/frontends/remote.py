"""Limits, usage, stored responses and metrics in a frontend: the control process keeps them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from penstock.flow import FinishReason, Timings
from penstock.flow.identity import Source
from penstock.frontends.control_link import ControlLink
from penstock.frontends.messages import (
    Complete,
    FetchResponse,
    Release,
    Reserve,
    SequenceEnded,
    StoreResponse,
    Used,
)
from penstock.gateway.accounting import Accounting
from penstock.gateway.keys.identity import Identity
from penstock.gateway.ledger.record import UsageRecord
from penstock.gateway.limits.account import Account, AccountUse
from penstock.gateway.limits.counts import LimiterCounts
from penstock.gateway.limits.headers import rate_limit_headers
from penstock.gateway.limits.limiter import UsageHistory
from penstock.gateway.limits.reservation import Charge, Reservation
from penstock.http.response_store import StoredResponse
from penstock.observe.metrics import PrometheusMetrics


class RemoteLimiter:
    """A Limiter. With a ledger and no limits, the control process still learns of each request before it begins, so
    that it can record those of a frontend that dies."""

    available = True  # the control process says otherwise in its answers

    def __init__(self, link: ControlLink) -> None:
        self.counts = LimiterCounts()  # those of the control process count
        self._link = link

    async def start(self, history: UsageHistory | None) -> None:
        pass

    async def close(self) -> None:
        pass

    async def reserve(self, identity: Identity, request: str, charge: Charge) -> Reservation:
        raise NotImplementedError  # `RemoteAccounting.reserve` does, and names the model

    async def settle(self, reservation: Reservation, charge: Charge, *, never_began: bool = False) -> None:
        """Of a request that never began; `RemoteAccounting.complete` settles the others."""
        await self._link.call(lambda call: Release(call, reservation.request), type(None))

    def headers(self, reservation: Reservation) -> dict[str, str]:
        return rate_limit_headers(reservation.requests, reservation.tokens)

    async def use(self, accounts: Sequence[Account]) -> list[AccountUse]:
        raise NotImplementedError  # routes that ask for it are those of the control process


class RemoteAccounting(Accounting):
    def __init__(self, link: ControlLink, *, durable: bool, **options: Any) -> None:
        """`durable`: the server has a ledger."""
        super().__init__(None, RemoteLimiter(link) if durable else None, **options)
        self._link = link
        self._durable = durable

    @property
    def durable(self) -> bool:
        return self._durable

    async def reserve(self, identity: Identity, request: str, charge: Charge, model: str) -> Reservation:
        try:
            return await self._link.call(lambda call: Reserve(call, identity, request, charge, model), Reservation)
        except asyncio.CancelledError:  # it may be reserved by now
            self._link.tell(Release(0, request))
            raise

    async def complete(
        self, record: UsageRecord, held: Reservation | None, *, awaited: bool, request: str | None = None
    ) -> None:
        if not self._durable:
            self._link.tell(Used(record))
            return
        name = record.request if request is None else request
        await self._link.call(lambda call: Complete(call, record, awaited, name), type(None))


class RemoteResponseStore:
    """A ResponseStore, with `put` and `get` only: all other routes of stored responses are those of the control
    process."""

    def __init__(self, link: ControlLink, *, what: str) -> None:
        self.what = what
        self._link = link

    async def check(self) -> None:
        pass  # a database that is away is told with the answer

    async def put(self, tenant: str, name: str, response: StoredResponse) -> None:
        await self._link.call(lambda call: StoreResponse(call, self.what, tenant, name, response), type(None))

    async def get(self, tenant: str, name: str, *, param: str = "response_id") -> StoredResponse:
        return await self._link.call(lambda call: FetchResponse(call, self.what, tenant, name, param), StoredResponse)

    async def bodies(self, tenant: str) -> list[bytes]:
        raise NotImplementedError

    async def replace(self, tenant: str, name: str, response: StoredResponse) -> None:
        raise NotImplementedError

    async def delete(self, tenant: str, name: str, *, param: str = "response_id") -> None:
        raise NotImplementedError


class RemoteMetrics(PrometheusMetrics):
    def __init__(self, link: ControlLink, source: Source) -> None:
        super().__init__(source)
        self._link = link

    def count_ended(
        self,
        source: Source,
        finish: FinishReason,
        prompt_tokens: int,
        cached_tokens: int,
        output_tokens: int,
        timings: Timings | None,
    ) -> None:
        self._link.tell(SequenceEnded(source, finish, prompt_tokens, cached_tokens, output_tokens, timings))
