"""Requests of the journal: the list, the trace of one, and their replay under static batching."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from penstock.deployment.registry import untagged
from penstock.flow.identity import Source
from penstock.gateway.keys.identity import Scope
from penstock.http.debug import route_docs
from penstock.http.debug.queries import find_request, source_of_query
from penstock.http.json_response import encode_response
from penstock.http.middleware.tenants import tenant_of
from penstock.http.routing import App
from penstock.http.service import Service
from penstock.observe import batching_replay
from penstock.observe.observer import Observer
from penstock.observe.performance import fit_step_cost, recent_steps
from penstock.observe.trace.records import LAB, RequestTrace

JsonObject = dict[str, Any]


def add(app: App, service: Service, observer: Observer) -> None:
    observe = app.requiring(Scope.OBSERVE)
    journal, view = observer.journal, observer.view

    @observe.get("/observe/requests", **route_docs.REQUESTS.docs)
    async def requests(request: Request) -> Response:
        """The recorded requests, the newest first."""
        query = route_docs.REQUESTS.read_query(request)
        limit, tenant = query["limit"], tenant_of(request.scope)
        matches = _filter(query, observer)
        recorded = sorted(journal.requests(tenant), key=lambda one: -one.number)
        # In a thread: this may search texts.
        found = await asyncio.to_thread(lambda: list(islice(filter(matches, recorded), limit + 1)))
        return encode_response(
            {
                "requests": [view.summary(one) for one in found[:limit]],
                "more": len(found) > limit,
                "kept": len(recorded),
                "total": journal.counts[tenant],
            }
        )

    @observe.get("/observe/requests/{name}", **route_docs.REQUEST.docs)
    async def one_request(name: str, request: Request) -> Response:
        """The trace of one request, by the id of its response, its x-request-id or its number."""
        route_docs.REQUEST.read_query(request)
        trace = find_request(observer, name, request)
        return encode_response(await asyncio.to_thread(view.with_steps, trace, view.overview(trace)))

    @observe.get("/observe/replay", **route_docs.REPLAY.docs)
    async def replayed(request: Request) -> Response:
        """The recorded load under static and under continuous batching."""
        query = route_docs.REPLAY.read_query(request)
        source = source_of_query(service, request, query)
        return encode_response(
            await asyncio.to_thread(_replay, observer, tenant_of(request.scope), query["limit"], query["batch"], source)
        )


def _filter(query: JsonObject, observer: Observer) -> Callable[[RequestTrace], bool]:
    state, kind, batch, finish, part, before = (
        query[name] for name in ("state", "kind", "batch", "finish", "q", "before")
    )
    model, replica, since, until = (query[name] for name in ("model", "replica", "since", "until"))
    at = observer.journal.epoch.micros
    min_s = query["min_ms"] / 1000
    now = observer.journal.clock()

    def matches(request: RequestTrace) -> bool:
        return (
            (before is None or request.number < before)
            and (state is None or (state == "open") == (request.end is None))
            and (kind is None or request.kind == kind)
            and (batch is None or request.batch == batch)
            and (finish is None or request.finish == finish)
            and (model is None or untagged(request.model or "") == untagged(model))
            and (replica is None or request.replica == replica)
            and (since is None or request.end is None or at(request.end) >= since)
            and (until is None or at(request.accepted) <= until)
            and ((now if request.end is None else request.end) - request.accepted >= min_s)
            and (part is None or part in request.id or part in request.request_id or _has_text(observer, request, part))
        )

    return matches


def _has_text(observer: Observer, request: RequestTrace, part: str) -> bool:
    prompts = (observer.view.text(request, tokens) for tokens in request.prompts or ())
    return any(part in text for text in (*(request.answers or ()), *prompts))


def _replay(observer: Observer, tenant: str, limit: int, batch: int, source: Source) -> JsonObject:
    journal = observer.journal
    cost = fit_step_cost(recent_steps(journal, source))
    recorded = [
        (request, sequence)
        for request in [one for one in list(journal.done) if one.tenant == tenant and one.source == source][-limit:]
        for sequence in request.sequences
        if sequence.admitted is not None and sequence.output_tokens and request.kind != LAB
    ][-limit:]
    start = min((sequence.queued for _, sequence in recorded), default=0.0)
    jobs = [
        batching_replay.ReplayedSequence(
            sequence.number,
            request.number,
            (sequence.queued - start) * 1e6,
            sequence.prompt_tokens,
            sequence.cached,
            sequence.output_tokens,
        )
        for request, sequence in recorded
    ]
    computed = jobs and cost is not None
    return {
        "computed": True,
        "note": "Both are computed: the recorded requests, with a cost per step fitted to this engine's real steps.",
        "batch": batch,
        "cost": None if cost is None else cost._asdict(),
        "requests": [job.to_json() for job in jobs],
        "static": batching_replay.static_batching(jobs, batch, cost) if computed and cost is not None else None,
        "continuous": batching_replay.continuous_batching(jobs, batch, cost) if computed and cost is not None else None,
    }
