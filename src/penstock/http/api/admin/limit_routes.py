"""The live use of limits, of each tenant and each of its active keys."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import NotFound
from penstock.gateway.keys.identity import Scope
from penstock.gateway.keys.manager import KeyManager
from penstock.gateway.keys.records import MICROUSD, KeyRecord, TenantRecord, Wanted
from penstock.gateway.limits.account import Account, AccountUse
from penstock.gateway.limits.limiter import Limiter
from penstock.http.api.admin.actions import key_manager
from penstock.http.api.admin.bodies import Page
from penstock.http.api.admin.paging import AFTER, LIMIT, SEARCH, cut_page
from penstock.http.json_response import json_response
from penstock.http.openapi.route_docs import route_docs
from penstock.http.parse.query import Parameter, read_query
from penstock.http.routing import App
from penstock.http.service import Service

NOT_FOUND = "No such tenant or key, or a server without a database of keys."
LIST = (
    Parameter(name="tenant", description="Only this tenant and its keys."),
    Parameter(name="key", description="Only this key."),
    SEARCH,
    AFTER,
    LIMIT,
)
ACCOUNTS_AT_ONCE = 100  # of one look into the store, which holds others up meanwhile


class LimitUse(msgspec.Struct, frozen=True, kw_only=True):
    """One limit. `limit` and `remaining` are null without one."""

    limit: float | None
    settled: float  # used by requests that have ended
    reserved: float  # of open requests
    remaining: float | None


class LimitsUse(msgspec.Struct, frozen=True, kw_only=True):
    """The live use of a key or a tenant: of the last 60 seconds, the UTC day and the UTC month."""

    object: Literal["limits"] = "limits"
    id: str  # the tenant, or tenant/key
    owner: Literal["key", "tenant"]
    tenant: str
    key: str | None  # the id; null: all keys of the tenant
    name: str
    requests_per_minute: LimitUse
    tokens_per_minute: LimitUse
    concurrent_requests: LimitUse
    usd_per_day: LimitUse
    usd_per_month: LimitUse


class LimitsUseList(Page, frozen=True, kw_only=True):
    data: list[LimitsUse]


ANSWERS = (LimitUse, LimitsUse, LimitsUseList)


def add(app: App, service: Service) -> None:
    docs = route_docs(None, LimitsUseList, not_found=NOT_FOUND, may_reject=True, parameters=LIST)

    @app.requiring(Scope.ADMIN).get("/admin/limits", **docs)
    async def list_limits(request: Request) -> Response:
        """How much of their limits tenants and active keys use now: tenants by name, each followed by its keys."""
        asked, manager, limiter = read_query(request, LIST), key_manager(service), service.accounting.limiter
        if limiter is None:
            raise NotFound("this server has no limits: start it with --keys")
        owners, page = cut_page(await _owners(manager, asked), asked["limit"], _id)
        uses = await _uses(limiter, [_account(owner) for owner in owners])
        data = [_limits_use(owner, use) for owner, use in zip(owners, uses, strict=True)]
        return json_response(msgspec.json.encode(LimitsUseList(data=data, **page)))


async def _owners(manager: KeyManager, asked: dict[str, Any]) -> list[TenantRecord | KeyRecord]:
    """One more than the page may have, if there are more."""
    store, tenant = manager.store, asked["tenant"]
    if asked["key"] is not None:
        key = await manager.read(store.key, asked["key"])
        return [key] if tenant in (None, key.tenant) else []
    if tenant is not None:
        await manager.read(store.tenant, tenant)
    wanted = Wanted(tenant=tenant, search=asked["search"], state="active")
    return await manager.read(store.owners, wanted, after=asked["after"], limit=asked["limit"] + 1)


async def _uses(limiter: Limiter, accounts: Sequence[Account]) -> list[AccountUse]:
    rest, uses = iter(accounts), list[AccountUse]()
    while some := list(islice(rest, ACCOUNTS_AT_ONCE)):
        uses += await limiter.use(some)
    return uses


def _id(owner: TenantRecord | KeyRecord) -> str:
    return f"{owner.tenant}/{owner.id}" if isinstance(owner, KeyRecord) else owner.name


def _account(owner: TenantRecord | KeyRecord) -> Account:
    return Account(owner.tenant, owner.id) if isinstance(owner, KeyRecord) else Account(owner.name)


def _limits_use(owner: TenantRecord | KeyRecord, use: AccountUse) -> LimitsUse:
    account, limits = _account(owner), owner.limits
    return LimitsUse(
        id=_id(owner),
        owner="key" if account.key else "tenant",
        tenant=account.tenant,
        key=account.key or None,
        name=owner.name,
        requests_per_minute=_use(limits.requests_per_minute, use.requests, 0),
        tokens_per_minute=_use(limits.tokens_per_minute, use.settled_tokens, use.reserved_tokens),
        concurrent_requests=_use(limits.concurrent_requests, 0, use.open_requests),
        usd_per_day=_usd(limits.microusd_per_day, use.settled_microusd_day, use),
        usd_per_month=_usd(limits.microusd_per_month, use.settled_microusd_month, use),
    )


def _use(limit: int | None, settled: int, reserved: int, unit: int = 1) -> LimitUse:
    remaining = None if limit is None else max(0, limit - settled - reserved)
    if unit == 1:
        return LimitUse(limit=limit, settled=settled, reserved=reserved, remaining=remaining)
    return LimitUse(
        limit=None if limit is None else limit / unit,
        settled=settled / unit,
        reserved=reserved / unit,
        remaining=None if remaining is None else remaining / unit,
    )


def _usd(limit: int | None, settled_microusd: int, use: AccountUse) -> LimitUse:
    return _use(limit, settled_microusd, use.reserved_microusd, MICROUSD)
