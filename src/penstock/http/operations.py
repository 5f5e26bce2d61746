"""Routes for operators: health, readiness, version, and metrics for Prometheus."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.responses import Response

import penstock
from penstock.errors import PenstockError
from penstock.http.json_response import json_response
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

    @app.get("/health", **operator_route_docs(_STATUS, "The process answers."))
    async def health() -> Response:
        """Whether the process is there. Needs no key."""
        return json_response(b'{"status":"ok"}')

    @app.get("/ready", **operator_route_docs(_STATUS, "Now.", unavailable="Not yet, or not any more."))
    async def ready() -> Response:
        """Whether requests are taken: the engine is up and the server is not shutting down. Needs no key."""
        state = "shutting down" if service.closing else service.replica.state.value
        return json_response(msgspec.json.encode({"status": state}), 200 if service.ready else 503)

    @app.get("/version", **operator_route_docs(_VERSION, "The answer."))
    async def version() -> Response:
        """The server's version, and what it runs."""
        facts = {"version": penstock.__version__, "model": service.files.name, **service.replica.facts}
        return json_response(msgspec.json.encode(facts))

    @app.get("/metrics", **operator_route_docs(_PROMETHEUS_TEXT, "The answer."))
    async def metrics() -> Response:
        """For Prometheus."""
        stats: dict[str, Any] | None = None
        try:
            async with asyncio.timeout(STATS_TIMEOUT_S):
                stats = await service.replica.ask("stats")
        except (PenstockError, TimeoutError):
            pass
        replica = service.replica
        pid = replica.facts.get("pid") if stats is not None else None
        status = ReplicaStatus(replica.source, stats, replica.restarts, service.ready, pid)
        tasks = len(asyncio.all_tasks())
        text = service.metrics.text([status], open_requests=service.open, tasks=tasks, gpu=gpu.read())
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
