"""Routes for operators: health, readiness, version, and metrics for Prometheus."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import penstock
from penstock.deployment.local_model import LocalModel
from penstock.deployment.protocol import State
from penstock.deployment.replica import Replica
from penstock.errors import PenstockError
from penstock.gateway.keys.identity import Scope
from penstock.http.json_response import json_response
from penstock.http.middleware.tenants import identity_of
from penstock.http.openapi.route_docs import operator_route_docs
from penstock.http.routing import App
from penstock.http.service import Service
from penstock.observe.gpu import Gpu
from penstock.observe.metrics import ReplicaStatus

STATS_TIMEOUT_S = 2.0  # a scrape waits no longer for an engine in a long step

_STATUS = {
    "application/json": {
        "schema": {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}
    }
}
_STORE = {"type": "string", "enum": ["available", "unavailable"]}
_READY = {
    "application/json": {
        "schema": {
            "type": "object",
            "properties": {"status": {"type": "string"}, "limits": _STORE, "ledger": _STORE, "keys": _STORE},
            "required": ["status"],
        }
    }
}
_VERSION = {
    "application/json": {
        "schema": {
            "type": "object",
            "properties": {"version": {"type": "string"}, "model": {"type": "string"}},
            "required": ["version", "model"],
        }
    }
}
_PROMETHEUS_TEXT = {"text/plain": {"schema": {"type": "string"}}}


def add(app: App, service: Service) -> None:
    gpu = Gpu()

    @app.public.get("/health", **operator_route_docs(_STATUS, "The process answers."))
    async def health() -> Response:
        """Whether the process is there. Needs no key."""
        return json_response(b'{"status":"ok"}')

    @app.public.get("/ready", **operator_route_docs(_READY, "Now.", unavailable="Not yet, or not any more."))
    async def ready() -> Response:
        """Whether requests are taken: the engine is up, limits can be checked and usage recorded (or requests are let
        through without), and the server is not shutting down. Needs no key."""
        accounting = service.accounting
        stores = accounting.stores()
        if service.closing:
            state = "shutting down"
        elif not service.ready:
            state = service.models.default.state.value
        elif accounting.accepts_requests:
            state = "ready"
        else:
            state = next(f"{name} unavailable" for name, store in stores.items() if store == "unavailable")
        if service.key_manager is not None:  # away or not: known keys stay valid
            stores = {**stores, "keys": "available" if service.key_manager.available else "unavailable"}
        body = {"status": state, **stores}
        return json_response(msgspec.json.encode(body), 200 if state == "ready" else 503)

    @app.requiring(*Scope).get("/version", **operator_route_docs(_VERSION, "The answer."))
    async def version(request: Request) -> Response:
        """The server's version, and what it runs."""
        model = service.models_of(identity_of(request.scope)).find(None)
        facts = model.replicas.facts if isinstance(model, LocalModel) else {}
        return json_response(msgspec.json.encode({"version": penstock.__version__, "model": model.card.name, **facts}))

    @app.requiring(Scope.OBSERVE).get("/metrics", **operator_route_docs(_PROMETHEUS_TEXT, "The answer."))
    async def metrics(request: Request) -> Response:
        """For Prometheus. By tenant for admins only."""
        replicas = [replica for model in service.models.local for replica in model.replicas.replicas]
        statuses = await asyncio.gather(*(_status(service, replica) for replica in replicas))
        open_requests = {model.card.name: service.open_by_model[model.card.name] for model in service.models}
        tasks = len(asyncio.all_tasks())
        if (frontends := service.frontends) is not None:
            tasks += frontends.tasks()
            for name, count in frontends.open_by_model().items():
                open_requests[name] = open_requests.get(name, 0) + count
        text = service.metrics.text(statuses, open_requests=open_requests, tasks=tasks, gpu=gpu.read())
        if Scope.ADMIN in identity_of(request.scope).scopes:
            shares = await asyncio.gather(*(_shares(replica) for replica in replicas))
            text += service.metrics.tenants.text({one.source: rows for one, rows in zip(replicas, shares, strict=True)})
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def _shares(replica: Replica) -> list[dict[str, Any]]:
    """Of its tenants; none while the engine does not answer."""
    try:
        async with asyncio.timeout(STATS_TIMEOUT_S):
            rows: list[dict[str, Any]] = (await replica.ask("tenants"))["tenants"]
            return rows
    except (PenstockError, TimeoutError):
        return []


async def _status(service: Service, replica: Replica) -> ReplicaStatus:
    stats: dict[str, Any] | None = None
    try:
        async with asyncio.timeout(STATS_TIMEOUT_S):
            stats = await replica.ask("stats")
    except (PenstockError, TimeoutError):
        pass
    ready = not service.closing and replica.state is State.READY
    pid = replica.facts.get("pid") if stats is not None else None
    return ReplicaStatus(replica.source, stats, replica.restarts, ready, pid)
