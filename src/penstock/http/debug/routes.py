"""The glass box: routes that show what happens inside. docs/OBSERVE.md describes them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import islice
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.responses import StreamingResponse

import penstock
from penstock import flow
from penstock.errors import EngineDied, InvalidRequest, NotFound
from penstock.flow import SamplingParams
from penstock.flow.record import Finding
from penstock.http.api.client_field_names import client_field_names
from penstock.http.api.response_format import CLIENT_NAMES
from penstock.http.debug import sampling_lab, schemas
from penstock.http.middleware.tenants import tenant_of
from penstock.http.parse.body import read
from penstock.http.request_events import RequestEvents
from penstock.http.service import Service
from penstock.http.sse import Named, framed
from penstock.http.streaming import Whole
from penstock.observe import batching_replay
from penstock.observe.live_feed import LiveFeed
from penstock.observe.observer import Observer
from penstock.observe.performance import fit_step_cost, performance_figures, recent_steps
from penstock.observe.trace.journal import LAB
from penstock.observe.trace.prefix_explanation import explain_prefix
from penstock.observe.trace.records import RequestTrace
from penstock.observe.trace.step_window import step_window
from penstock.settings import Settings
from penstock.stream.active_request import ActiveRequest

ASK_WAIT_S = 30.0  # for an engine in a long step
DEFAULT_STEPS = 400

Shown = dict[str, Any]


def add(app: FastAPI, service: Service, observer: Observer | None, settings: Settings) -> None:
    _add_check(app, service)
    if observer is None:
        _add_nothing(app)
        return
    _add_facts(app, service, observer, settings)
    _add_live(app, service, observer)
    _add_requests(app, observer)
    _add_steps(app, observer)
    _add_cache(app, service, observer)
    _add_lab(app, service)


def _add_nothing(app: FastAPI) -> None:
    @app.get("/slo", include_in_schema=False)
    @app.api_route("/observe/{path:path}", methods=["GET", "POST"], include_in_schema=False)
    async def off(path: str = "") -> Response:
        raise NotFound("this server records no events: start it without --no-events")


def _add_check(app: FastAPI, service: Service) -> None:
    one_at_a_time = asyncio.Lock()  # each looks at every block, between two steps

    @app.get("/observe/check", **schemas.CHECK.described)
    async def check(request: Request) -> Response:
        """Whether the engine's books balance."""
        schemas.CHECK.query(request)
        async with one_at_a_time:
            start = time.monotonic()
            wrong = await _ask(service, "check")
            spent_us = round((time.monotonic() - start) * 1e6)
        return _json({"ok": wrong is None, "wrong": wrong, "us": spent_us})


def _add_facts(app: FastAPI, service: Service, observer: Observer, settings: Settings) -> None:
    journal = observer.journal
    told_settings = _told(settings)

    @app.get("/observe/facts", **schemas.FACTS.described)
    async def facts(request: Request) -> Response:
        """Model, engine, settings and measured figures."""
        schemas.FACTS.query(request)
        measured = await asyncio.to_thread(performance_figures, journal)
        spec = msgspec.to_builtins(service.files.spec)
        plain = {name: value for name, value in spec.items() if isinstance(value, int | float | str | bool)}
        return _json(
            {
                "version": penstock.__version__,
                "started_unix": journal.epoch.unix,
                "now": journal.at(journal.clock()),
                "ready": service.ready,
                "events": True,
                "keep_texts": journal.keep_texts,
                "keys": bool(settings.serve.keys),
                "model": {**plain, "name": service.files.name},
                "engine": {**service.replica.facts, "restarts": service.replica.restarts},
                "settings": told_settings,
                "sampling": service.files.sampling,
                "measured": measured,
            }
        )

    @app.get("/observe/history", **schemas.HISTORY.described)
    async def history(request: Request) -> Response:
        """Load, latencies and use over the last hour or less."""
        query = schemas.HISTORY.query(request)
        return _json(observer.history.columns(query["seconds"], query["points"]))

    @app.get("/slo", **schemas.SLO.described)
    async def slo(request: Request) -> Response:
        """Objectives, and what is wrong where they are missed."""
        schemas.SLO.query(request)
        return _json(observer.monitor.status(tenant_of(request.scope)))


def _add_live(app: FastAPI, service: Service, observer: Observer) -> None:
    @app.get("/observe/live", **schemas.LIVE.described)
    async def live(request: Request) -> Response:
        """All that happens, while it does."""
        query = schemas.LIVE.query(request)
        interval_s = query["interval_ms"] / 1000
        feed = LiveFeed(observer, steps=query["steps"] == "1", tenant=tenant_of(request.scope))

        async def ticks() -> AsyncIterator[bytes]:
            yield _event("hello", feed.hello())
            while not service.closing:
                await observer.refresh(service.replica.source, lambda: service.replica.ask("stats"))
                yield _event("tick", feed.tick(ready=service.ready, restarts=service.replica.restarts))
                await asyncio.sleep(interval_s)

        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return StreamingResponse(ticks(), media_type="text/event-stream; charset=utf-8", headers=headers)


def _add_requests(app: FastAPI, observer: Observer) -> None:
    journal, view = observer.journal, observer.view

    @app.get("/observe/requests", **schemas.REQUESTS.described)
    async def requests(request: Request) -> Response:
        """The requests that are kept."""
        query = schemas.REQUESTS.query(request)
        limit, tenant = query["limit"], tenant_of(request.scope)
        wanted = _filter(query, observer)
        kept = sorted(journal.requests(tenant), key=lambda one: -one.number)
        # Off the loop: texts may be searched.
        found = await asyncio.to_thread(lambda: list(islice(filter(wanted, kept), limit + 1)))
        return _json(
            {
                "requests": [view.summary(one) for one in found[:limit]],
                "more": len(found) > limit,
                "kept": len(kept),
                "total": journal.counts[tenant],
            }
        )

    @app.get("/observe/requests/{name}", **schemas.REQUEST.described)
    async def one_request(name: str, request: Request) -> Response:
        """The waterfall of a request: by the id of its answer, its x-request-id or its number."""
        schemas.REQUEST.query(request)
        found = _found(observer, name, request)
        return _json(await asyncio.to_thread(view.with_steps, found, view.overview(found)))

    @app.get("/observe/replay", **schemas.REPLAY.described)
    async def replayed(request: Request) -> Response:
        """What another way of batching would have made of the load."""
        query = schemas.REPLAY.query(request)
        tenant = tenant_of(request.scope)
        return _json(await asyncio.to_thread(_replay, observer, tenant, query["limit"], query["batch"]))


def _filter(query: Shown, observer: Observer) -> Callable[[RequestTrace], bool]:
    state, kind, finish, part, before = (query[name] for name in ("state", "kind", "finish", "q", "before"))
    longer_s = query["min_ms"] / 1000
    now = observer.journal.clock()

    def wanted(request: RequestTrace) -> bool:
        return (
            (before is None or request.number < before)
            and (state is None or (state == "open") == (request.end is None))
            and (kind is None or request.kind == kind)
            and (finish is None or request.finish == finish)
            and ((now if request.end is None else request.end) - request.accepted >= longer_s)
            and (part is None or part in request.id or part in request.request_id or _has_text(observer, request, part))
        )

    return wanted


def _has_text(observer: Observer, request: RequestTrace, part: str) -> bool:
    prompts = (observer.view.text(request, tokens) for tokens in request.prompts or ())
    return any(part in text for text in (*(request.answers or ()), *prompts))


def _found(observer: Observer, name: str, request: Request) -> RequestTrace:
    found = observer.journal.find(name, tenant_of(request.scope))
    if found is None:
        raise NotFound(f"no request {name[:128]!r} is kept; the last {len(observer.journal.done)} are")
    return found


def _replay(observer: Observer, tenant: str, limit: int, batch: int) -> Shown:
    journal = observer.journal
    cost = fit_step_cost(recent_steps(journal))
    recorded = [
        (request, sequence)
        for request in [one for one in list(journal.done) if one.tenant == tenant][-limit:]
        for sequence in request.sequences
        if sequence.admitted is not None and sequence.output_tokens and request.kind != LAB
    ][-limit:]
    begin = min((sequence.queued for _, sequence in recorded), default=0.0)
    jobs = [
        batching_replay.ReplayedSequence(
            sequence.number,
            request.number,
            (sequence.queued - begin) * 1e6,
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


def _add_steps(app: FastAPI, observer: Observer) -> None:
    @app.get("/observe/steps", **schemas.STEPS.described)
    async def steps(request: Request) -> Response:
        """Who was in which step of the engine, and with how many tokens."""
        query = schemas.STEPS.query(request)
        begin, end = _asked_steps(query, observer.journal.replica().steps.last)
        rows, tenant = query["rows"] == "1", tenant_of(request.scope)
        shown = await asyncio.to_thread(
            step_window, observer.journal, begin, end, query["columns"], rows=rows, tenant=tenant
        )
        return _json(shown)


def _asked_steps(query: Shown, newest: int) -> tuple[int, int]:
    begin, end, last = query["from"], query["to"], query["last"]
    if begin is not None and last is not None:
        raise InvalidRequest("last and from exclude each other", param="last")
    if begin is not None and end is not None and begin > end:
        raise InvalidRequest(f"from must not be above to, got {begin} and {end}", param="from")
    end = newest if end is None else min(end, newest)
    return end - (last or DEFAULT_STEPS) + 1 if begin is None else begin, end


def _add_cache(app: FastAPI, service: Service, observer: Observer) -> None:
    journal = observer.journal

    @app.get("/observe/cache", **schemas.CACHE.described)
    async def cache(request: Request) -> Response:
        """Who holds which KV blocks."""
        schemas.CACHE.query(request)
        return _json(_page_map(observer, await _ask(service, "page_map", tenant=tenant_of(request.scope))))

    @app.get("/observe/cache/tree", **schemas.TREE.described)
    async def tree(request: Request) -> Response:
        """What prompts have in common, and how often it was found."""
        query = schemas.TREE.query(request)
        name = query["request"]
        numbers = [] if name is None else [sequence.number for sequence in _found(observer, name, request).sequences]
        tenant = tenant_of(request.scope)
        return _json(await _ask(service, "prefix_tree", tenant=tenant, limit=query["limit"], numbers=numbers))

    @app.post("/observe/cache/explain", **schemas.EXPLAIN.described)
    async def explain(request: Request) -> Response:
        """Why so much of a prompt is cached, and no more."""
        schemas.EXPLAIN.query(request)
        body = await read(sampling_lab.ExplainRequest, request)
        asked = body.to_request("", SamplingParams())
        tokens = await asyncio.to_thread(service.prompt_tokens, asked)
        found = await _ask(
            service, "explain", tenant=tenant_of(request.scope), tokens=tokens, salt=body.cache_salt or ""
        )
        told = explain_prefix(
            Finding(*found["finding"]), len(tokens), found["cached"], found["block_size"], tokens,
            lambda part: service.tokenizer.decode(list(part), skip_special=False),
        )  # fmt: skip
        return _json({**(told or {}), "t": journal.at(journal.clock())})


def _page_map(observer: Observer, found: Shown) -> Shown:
    journal = observer.journal
    now = journal.clock()
    evictions = found["evictions"]
    sequences = {}
    for number, one in found["sequences"].items():
        owner = journal.sequence(int(number))
        sequences[number] = {**one, "request": owner[0].number if owner else None}
    waste, room = found["waste_tokens"], found["held_blocks"] * found["block_size"]
    prompts, hits = found["prompt_tokens"], found["hit_tokens"]
    return {
        "t": journal.at(now),
        "block_size": found["block_size"],
        "prefix_caching": found["prefix_caching"],
        "groups": found["groups"],
        "sequences": sequences,
        "fragmentation": {
            "waste_tokens": waste,
            "held_tokens_capacity": room,
            "ratio": round(waste / room, 4) if room else 0.0,
        },
        "evictions": {
            "total": evictions["total"],
            "last_60_s": evictions["last_60_s"],
            "recent": [{**one, "t": journal.at(one.pop("at"))} for one in evictions["recent"]],
        },
        "hits": {"prompt_tokens": prompts, "hit_tokens": hits, "ratio": round(hits / prompts, 4) if prompts else 0.0},
        "ghosts": evictions["ghosts"],
    }


def _add_lab(app: FastAPI, service: Service) -> None:
    @app.post("/observe/lab", **schemas.LABORATORY.described)
    async def laboratory(request: Request) -> Response:
        """One step of the model on a prompt, and how its token is drawn."""
        schemas.LABORATORY.query(request)
        with RequestEvents(request.scope, LAB, service.emit) as events:
            body = await read(sampling_lab.LabRequest, request)
            events.parsed()
            with client_field_names(CLIENT_NAMES):
                params = sampling_lab.sampling(body)
            forced = body.forced or []
            tokens = await asyncio.to_thread(service.prompt_tokens, body.to_request("", params))
            asked = flow.Request(
                id=events.name,
                params=params,
                tokens=[*tokens, *forced],
                forced=len(forced),
                inspect=body.top or sampling_lab.DEFAULT_TOP,
            )
            events.validated([asked])
            with client_field_names(CLIENT_NAMES):
                ticket = await service.submit([asked], events.tenant)

            def write(active_requests: Sequence[ActiveRequest]) -> bytes:
                return sampling_lab.answer(body, active_requests, service.tokenizer, service.files.spec.vocab_size)

            return Whole(service, ticket, write)


async def _ask(service: Service, kind: str, **arguments: Any) -> Any:
    try:
        async with asyncio.timeout(ASK_WAIT_S):
            return await service.replica.ask(kind, **arguments)
    except TimeoutError:
        raise EngineDied("the engine does not answer; try again in a moment") from None


def _told(settings: Settings) -> Shown:
    """Without what may be a secret."""
    told: Shown = msgspec.to_builtins(settings)
    told["serve"].pop("api_key")
    for name in ("slo_webhook", "otel_endpoint"):
        told["observe"].pop(name)
    return told


def _event(name: str, value: Shown) -> bytes:
    return framed([Named(name, msgspec.json.encode(value))])


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
