"""Engine steps: the batch timeline, and what speculation made of them."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import InvalidRequest
from penstock.gateway.keys.identity import Scope
from penstock.http.debug import route_docs
from penstock.http.debug.queries import ask_engine, replica_of_query, source_of_query
from penstock.http.json_response import encode_response
from penstock.http.middleware.tenants import tenant_of
from penstock.http.routing import App
from penstock.http.service import Service
from penstock.observe.observer import Observer
from penstock.observe.trace.step_window import step_window

DEFAULT_STEPS = 400

JsonObject = dict[str, Any]


def add(app: App, service: Service, observer: Observer) -> None:
    observe = app.requiring(Scope.OBSERVE)

    @observe.get("/observe/steps", **route_docs.STEPS.docs)
    async def steps(request: Request) -> Response:
        """The batch timeline: which sequences were in which engine step, with how many tokens."""
        query = route_docs.STEPS.read_query(request)
        source = source_of_query(service, request, query)
        first, end = _step_range(query, observer.journal.replica(source).steps.last)
        rows, tenant = query["rows"] == "1", tenant_of(request.scope)
        shown = await asyncio.to_thread(
            step_window, observer.journal, first, end, query["columns"], rows=rows, tenant=tenant, source=source
        )
        return encode_response(shown)

    @observe.get("/observe/speculation", **route_docs.SPECULATION.docs)
    async def speculation(request: Request) -> Response:
        """Drafted and accepted tokens by position, time saved, and what the audit found."""
        replica = replica_of_query(service, request, route_docs.SPECULATION.read_query(request))
        totals = (await ask_engine(replica, "stats")).get("speculation")
        blank = dict.fromkeys(route_docs.SPECULATION.members)
        return encode_response({**blank, **(totals or {}), "on": totals is not None})


def _step_range(query: JsonObject, newest: int) -> tuple[int, int]:
    first, end, last = query["from"], query["to"], query["last"]
    if first is not None and last is not None:
        raise InvalidRequest("last and from exclude each other", param="last")
    if first is not None and end is not None and first > end:
        raise InvalidRequest(f"from must not be above to, got {first} and {end}", param="from")
    end = newest if end is None else min(end, newest)
    return end - (last or DEFAULT_STEPS) + 1 if first is None else first, end
