"""The debug routes: what happens inside a running server. docs/OBSERVE.md describes them."""

from __future__ import annotations

import asyncio
import time

from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import NotFound
from penstock.gateway.keys.identity import Scope
from penstock.http.debug import (
    cache_routes,
    lab_routes,
    model_routes,
    pipeline_routes,
    request_routes,
    route_docs,
    server_routes,
    step_routes,
    tenant_routes,
)
from penstock.http.debug.queries import ask_engine, replica_of_query
from penstock.http.json_response import encode_response
from penstock.http.middleware.tenants import identity_of
from penstock.http.routing import App
from penstock.http.service import Service
from penstock.observe.observer import Observer
from penstock.settings import Settings


def add(app: App, service: Service, observer: Observer | None, settings: Settings) -> None:
    """`observer` is None on a server that records no events: only the check is there."""
    _add_check(app, service)
    tenant_routes.add(app, service)
    if observer is None:
        _add_not_found(app)
        return
    server_routes.add(app, service, observer, settings)
    server_routes.add_live(app, service, observer)
    request_routes.add(app, service, observer)
    step_routes.add(app, service, observer)
    cache_routes.add(app, service, observer)
    lab_routes.add(app, service)
    model_routes.add(app, service)
    pipeline_routes.add(app, service, observer, settings)


def _add_not_found(app: App) -> None:
    observe = app.requiring(Scope.OBSERVE)

    @observe.get("/slo", include_in_schema=False)
    @observe.api_route("/observe/{path:path}", methods=["GET", "POST"], include_in_schema=False)
    async def off(request: Request) -> Response:
        raise NotFound("this server records no events: start it without --no-events")


def _add_check(app: App, service: Service) -> None:
    observe = app.requiring(Scope.OBSERVE)
    lock = asyncio.Lock()  # one at a time: a check visits every block, between two steps

    @observe.get("/observe/check", **route_docs.CHECK.docs)
    async def check(request: Request) -> Response:
        """Check the engines' integrity: block tables, reference counts, prefix keys."""
        query = route_docs.CHECK.read_query(request)
        if query["model"] is not None or query["replica"] is not None:
            replicas = [replica_of_query(service, request, query)]
        else:
            models = service.models_of(identity_of(request.scope))
            replicas = [replica for model in models.local for replica in model.replicas.replicas]
        async with lock:
            start = time.monotonic()
            violations = {replica.name: await ask_engine(replica, "check") for replica in replicas}
            spent_us = round((time.monotonic() - start) * 1e6)
        wrong = [text if len(violations) == 1 else f"{name}: {text}" for name, text in violations.items() if text]
        return encode_response({"ok": not wrong, "wrong": "; ".join(wrong) or None, "us": spent_us})
