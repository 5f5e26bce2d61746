"""GET /usage: what requests used and cost, summed by day, tenant, key and model, as JSON or CSV."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any, cast, get_args

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import Forbidden, InvalidRequest, NotFound
from penstock.gateway.keys.identity import Identity, Scope
from penstock.gateway.ledger.queries import GROUPS, Group, UsageQuery, to_csv, total
from penstock.http.error_body import ErrorBody
from penstock.http.json_response import json_response
from penstock.http.middleware.tenants import identity_of
from penstock.http.openapi import schemas
from penstock.http.openapi.route_docs import route_docs
from penstock.http.parse.query import Parameter, read_query
from penstock.http.routing import App
from penstock.http.service import Service

MAX_ROWS = 10_000
_WHEN = "a UTC date such as 2026-11-16, an ISO 8601 time or seconds since 1970"
PARAMETERS = (
    Parameter(name="from", description=f"Requests that ended since then: {_WHEN}."),
    Parameter(name="to", description=f"Requests that ended before then; a date includes its day: {_WHEN}."),
    Parameter(name="group_by", description=f"Some of {', '.join(GROUPS)}, with commas; empty: all.", default="model"),
    Parameter(name="tenant", description="Only this tenant's; another than one's own needs the scope admin."),
    Parameter(name="key", description="Only requests of this key."),
    Parameter(name="model", description="Only requests that this model answered."),
    Parameter(name="format", description="CSV also with `Accept: text/csv`.", choices=("json", "csv")),
)


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """The sums of one group. Fields that it is not grouped by are left out."""

    day: str | UnsetType = UNSET
    tenant: str | UnsetType = UNSET
    key: str | UnsetType = UNSET  # the id
    key_name: str | UnsetType = UNSET  # beside `key`; empty if it has no name
    model: str | UnsetType = UNSET
    requests: int
    input_tokens: int  # cached ones included
    cached_tokens: int
    output_tokens: int
    drafted_tokens: int
    cost_usd: float
    cache_savings_usd: float  # what cached input would have cost more at the price of other input
    request_seconds: float


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "usage"
    group_by: list[str]
    data: list[UsageRow]
    total: UsageRow


ANSWERS = (UsageReport,)


def add(app: App, service: Service) -> None:
    docs = route_docs(None, UsageReport, not_found="The server has no ledger.", may_reject=True, parameters=PARAMETERS)
    docs["responses"][200]["content"]["text/csv"] = {"schema": {"type": "string"}}
    docs["responses"][503] = schemas.response(ErrorBody, "The database of the ledger does not answer.")

    @app.requiring(Scope.OBSERVE, Scope.ADMIN).get("/usage", **docs)
    async def usage(request: Request) -> Response:
        """Tokens and cost of the tenant's requests, or with the scope admin of all tenants'."""
        asked = read_query(request, PARAMETERS)
        query = _query(asked, identity_of(request.scope))
        ledger = service.accounting.ledger
        if ledger is None:
            raise NotFound("this server records no usage: start it with --ledger")
        sums = await ledger.sums(query)
        if len(sums) > MAX_ROWS:
            raise InvalidRequest(f"that are more than {MAX_ROWS} rows: narrow from and to", param="group_by")
        manager = service.key_manager
        rows = [one.row() if manager is None else one.row(manager.keys.name_of) for one in sums]
        if asked["format"] == "csv" or (asked["format"] is None and "text/csv" in request.headers.get("accept", "")):
            name = {"content-disposition": 'attachment; filename="usage.csv"'}
            return Response(to_csv(rows, query.group_by), 200, name, "text/csv; charset=utf-8")
        report = {
            "object": "usage",
            "group_by": [name for name in GROUPS if name in query.group_by],
            "data": rows,
            "total": total(sums).row(),
        }
        return json_response(msgspec.json.encode(report))


def _query(asked: dict[str, Any], identity: Identity) -> UsageQuery:
    """Raises InvalidRequest, or Forbidden for another tenant's usage."""
    only: dict[Group, str] = {
        name: asked[name] for name in get_args(Group) if name != "day" and asked[name] is not None
    }
    for name, value in only.items():
        if not value.isprintable():  # PostgreSQL takes no NUL
            raise InvalidRequest(f"{name} must be printable", param=name)
    if Scope.ADMIN not in identity.scopes and only.setdefault("tenant", identity.tenant) != identity.tenant:
        raise Forbidden("the usage of other tenants needs an API key with the scope admin")
    names = [name for part in asked["group_by"].split(",") if (name := part.strip())]
    if unknown := [name for name in names if name not in GROUPS]:
        raise InvalidRequest(f"group_by: {unknown[0][:64]!r} is none of {', '.join(GROUPS)}", param="group_by")
    groups = tuple(name for name in GROUPS if name in names)
    since, until = _instant(asked, "from"), _instant(asked, "to")
    return UsageQuery(since=since, until=until, group_by=groups, only=only, limit=MAX_ROWS + 1)


def _instant(asked: dict[str, Any], name: str) -> float | None:
    """Unix time; of a date, its begin or, for `to`, its end."""
    text = cast(str | None, asked[name])
    if text is None:
        return None
    try:
        if text.replace(".", "", 1).isdecimal() and len(text) <= 20:
            return float(text)
        if len(text) == 10:
            day = date.fromisoformat(text) + timedelta(days=name == "to")
            return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise InvalidRequest(f"{name} must be {_WHEN}", param=name) from None
