"""What the server is and how it does: facts, history, SLOs, and the live feed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

import penstock
from penstock.deployment.protocol import ServedModel
from penstock.deployment.replica import Replica
from penstock.errors import Unauthorized
from penstock.gateway.keys.identity import Scope
from penstock.http.api.admin.managed_model import describe_scaling
from penstock.http.debug import route_docs
from penstock.http.debug.queries import find_replica, model_of_query, source_of_query
from penstock.http.json_response import encode_response
from penstock.http.middleware.tenants import identity_of, tenant_of
from penstock.http.routing import App
from penstock.http.service import Service
from penstock.http.sse import NamedEvent, frame_events
from penstock.observe.live_feed import LiveFeed
from penstock.observe.observer import Observer
from penstock.observe.performance import performance_figures
from penstock.settings import Settings

JsonObject = dict[str, Any]


def add(app: App, service: Service, observer: Observer, settings: Settings) -> None:
    observe = app.requiring(Scope.OBSERVE)
    journal = observer.journal
    shown_settings = {whole: settings_without_secrets(settings, all_models=whole) for whole in (True, False)}

    @observe.get("/observe/facts", **route_docs.FACTS.docs)
    async def facts(request: Request) -> Response:
        """Model, engine, settings and measured figures."""
        query = route_docs.FACTS.read_query(request)
        model, source = model_of_query(service, request, query), source_of_query(service, request, query)
        replica = find_replica(model, query["replica"]) if model.replicas.replicas else None
        measured = await asyncio.to_thread(performance_figures, journal, source)
        spec = msgspec.to_builtins(model.files.spec)
        shape = {name: value for name, value in spec.items() if isinstance(value, int | float | str | bool)}
        return encode_response(
            {
                "version": penstock.__version__,
                "started_unix": journal.epoch.unix,
                "now": journal.at(journal.clock()),
                "ready": service.ready,
                "events": True,
                "keep_texts": journal.keep_texts,
                "keys": settings.needs_key,
                "scopes": sorted(identity_of(request.scope).scopes),
                "model": {**shape, "name": model.name},
                "engine": {} if replica is None else {**replica.facts, "restarts": replica.restarts},
                "settings": shown_settings[identity_of(request.scope).models is None],
                "sampling": model.sampling,
                "measured": measured,
                "replica": source.replica,
                "models": [_model_facts(one) for one in service.models_of(identity_of(request.scope))],
            }
        )

    @observe.get("/observe/history", **route_docs.HISTORY.docs)
    async def history(request: Request) -> Response:
        """Load, latencies and utilization of up to the last hour."""
        query = route_docs.HISTORY.read_query(request)
        return encode_response(observer.history.columns(query["seconds"], query["points"]))

    @observe.get("/observe/scaling", **route_docs.SCALING.docs)
    async def scaling(request: Request) -> Response:
        """How many replicas each model has, and why."""
        route_docs.SCALING.read_query(request)
        models = service.models_of(identity_of(request.scope)).local
        names = {model.name for model in models}
        described = {model.name: describe_scaling(model, service.autoscaler) for model in models}
        decisions = [
            {"t": journal.at(one.t), "model": one.model, "before": one.before, "after": one.after, "reason": one.reason}
            for one in reversed(journal.scalings)
            if one.model in names
        ]
        return encode_response({"models": msgspec.to_builtins(described), "decisions": decisions})

    @observe.get("/slo", **route_docs.SLO.docs)
    async def slo(request: Request) -> Response:
        """SLOs, open alerts and their causes."""
        route_docs.SLO.read_query(request)
        return encode_response(observer.monitor.status(tenant_of(request.scope)))


def add_live(app: App, service: Service, observer: Observer) -> None:
    observe = app.requiring(Scope.OBSERVE)

    @observe.get("/observe/live", **route_docs.LIVE.docs)
    async def live(request: Request) -> Response:
        """Stream statistics, requests and steps as they happen."""
        query = route_docs.LIVE.read_query(request)
        interval_s = query["interval_ms"] / 1000
        model, source = model_of_query(service, request, query), source_of_query(service, request, query)
        identity = identity_of(request.scope)
        feed = LiveFeed(observer, steps=query["steps"] == "1", tenant=identity.tenant, source=source)

        async def ticks() -> AsyncIterator[bytes]:
            yield _event("hello", feed.hello())
            while not service.closing:
                try:
                    service.keys.find(identity.key)
                except Unauthorized as error:
                    yield _event("error", {"code": error.code, "message": error.message})
                    return
                replicas = model.replicas.replicas
                shown = next((one for one in replicas if one.source == source), None)
                if shown is not None:
                    await observer.refresh(source, partial(shown.ask, "stats"))
                restarts = sum(replica.restarts for replica in replicas)
                yield _event("tick", feed.tick(ready=service.ready, restarts=restarts))
                await asyncio.sleep(interval_s)

        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return StreamingResponse(ticks(), media_type="text/event-stream; charset=utf-8", headers=headers)


def _model_facts(model: ServedModel) -> JsonObject:
    return {
        "name": model.card.name,
        "state": model.state.value,
        "replicas": [
            {
                "replica": one.source.replica,
                "state": one.state.value,
                **({"role": one.role.value} if isinstance(one, Replica) and one.role is not None else {}),
                **msgspec.to_builtins(one.load()),
            }
            for one in model.deployments
        ],
    }


def settings_without_secrets(settings: Settings, *, all_models: bool) -> JsonObject:
    """URLs may have credentials in them, safety rules name tenants, and a key that may not use `all_models` learns
    nothing of the others."""
    shown: JsonObject = msgspec.to_builtins(settings)
    shown.pop("safety")
    if not all_models:
        shown.pop("models")
        shown.pop("routes")
    shown["serve"].pop("api_key")
    shown["serve"].pop("admin_key")
    for section, name in (
        ("observe", "slo_webhook"),
        ("observe", "otel_endpoint"),
        ("tenants", "database"),
        ("tenants", "redis"),
    ):
        shown[section].pop(name)
    return shown


def _event(name: str, value: JsonObject) -> bytes:
    return frame_events([NamedEvent(name, msgspec.json.encode(value))])
