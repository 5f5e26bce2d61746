"""The glass box: routes that show what happens inside. docs/OBSERVE.md describes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import islice
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.responses import StreamingResponse

import penstock
from penstock import flow
from penstock.errors import EngineDied, NotFound
from penstock.flow import SamplingParams
from penstock.flow.record import Finding
from penstock.intake import lab
from penstock.intake.body import read_json
from penstock.intake.desk import Desk
from penstock.intake.parse import parse
from penstock.intake.query import Query
from penstock.intake.respond import Whole
from penstock.intake.visit import Visit
from penstock.observe import replay
from penstock.observe.explanation import explanation
from penstock.observe.journal import LAB
from penstock.observe.measured import figures, fit, recent
from penstock.observe.trace import RequestTrace
from penstock.observe.watch import Feed, Watch
from penstock.observe.window import MAX_COLUMNS, window
from penstock.pipeline import Flight
from penstock.settings import Settings

ASK_WAIT_S = 30.0  # for an engine in a long step
MAX_REPLAYED = 512
OFF_LOOP = 2000  # steps: a longer window is put together in a thread
KINDS = ("chat", "completion", "response", "message", "embedding", LAB)

Shown = dict[str, Any]


def add(app: FastAPI, desk: Desk, watch: Watch | None, settings: Settings) -> None:
    if watch is None:
        _add_nothing(app)
        return
    _add_facts(app, desk, watch, settings)
    _add_live(app, desk, watch)
    _add_requests(app, watch)
    _add_steps(app, watch)
    _add_cache(app, desk, watch)
    _add_lab(app, desk)


def _add_nothing(app: FastAPI) -> None:
    @app.get("/slo", include_in_schema=False)
    @app.api_route("/observe/{path:path}", methods=["GET", "POST"], include_in_schema=False)
    async def off(path: str = "") -> Response:
        raise NotFound("this server records no events: start it without --no-events")


def _add_facts(app: FastAPI, desk: Desk, watch: Watch, settings: Settings) -> None:
    journal = watch.journal
    told_settings = _told(settings)

    @app.get("/observe/facts", include_in_schema=False)
    async def facts() -> Response:
        measured = await asyncio.to_thread(figures, journal)
        spec = msgspec.to_builtins(desk.files.spec)
        plain = {name: value for name, value in spec.items() if isinstance(value, int | float | str | bool)}
        return _json(
            {
                "version": penstock.__version__,
                "started_unix": journal.started_unix,
                "now": journal.at(journal.clock()),
                "ready": desk.ready,
                "events": True,
                "keep_texts": journal.keep_texts,
                "keys": bool(settings.serve.keys),
                "model": {**plain, "name": desk.files.name},
                "engine": {**desk.replica.facts, "restarts": desk.replica.restarts},
                "settings": told_settings,
                "sampling": desk.files.sampling,
                "measured": measured,
            }
        )

    @app.get("/observe/history", include_in_schema=False)
    async def history(request: Request) -> Response:
        query = Query(request, "seconds", "points")
        seconds = query.number("seconds", 2, 3600) or 900.0
        return _json(watch.history.columns(seconds, query.integer("points", 1, 1800) or 300))

    @app.get("/slo", include_in_schema=False)
    async def slo() -> Response:
        return _json(watch.monitor.told())


def _add_live(app: FastAPI, desk: Desk, watch: Watch) -> None:
    @app.get("/observe/live", include_in_schema=False)
    async def live(request: Request) -> Response:
        query = Query(request, "interval_ms", "steps")
        interval_s = (query.integer("interval_ms", 100, 5000) or 500) / 1000
        feed = Feed(watch, steps=query.one_of("steps", "0", "1") == "1")

        async def ticks() -> AsyncIterator[bytes]:
            yield _event("hello", feed.hello())
            while not desk.closing:
                await watch.refresh(lambda: desk.replica.ask("stats"))
                yield _event("tick", feed.tick(ready=desk.ready, restarts=desk.replica.restarts))
                await asyncio.sleep(interval_s)

        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return StreamingResponse(ticks(), media_type="text/event-stream; charset=utf-8", headers=headers)


def _add_requests(app: FastAPI, watch: Watch) -> None:
    journal, view = watch.journal, watch.view

    @app.get("/observe/requests", include_in_schema=False)
    async def requests(request: Request) -> Response:
        query = Query(request, "state", "kind", "finish", "q", "min_ms", "limit", "before")
        limit = query.integer("limit", 1, 1000) or 100
        wanted = _filter(query, watch)
        kept = sorted(journal.requests(), key=lambda one: -one.number)
        # Off the loop: texts may be searched.
        found = await asyncio.to_thread(lambda: list(islice(filter(wanted, kept), limit + 1)))
        return _json(
            {
                "requests": [view.summary(one) for one in found[:limit]],
                "more": len(found) > limit,
                "kept": len(journal.done) + len(journal.open),
                "total": journal.count,
            }
        )

    @app.get("/observe/requests/{name}", include_in_schema=False)
    async def one_request(name: str, request: Request) -> Response:
        Query(request)
        return _json(view.detail(_found(watch, name)))

    @app.get("/observe/replay", include_in_schema=False)
    async def replayed(request: Request) -> Response:
        query = Query(request, "limit", "batch")
        limit = query.integer("limit", 1, MAX_REPLAYED) or 64
        batch = query.integer("batch", 1, 512) or 8
        return _json(await asyncio.to_thread(_replay, watch, limit, batch))


def _filter(query: Query, watch: Watch) -> Callable[[RequestTrace], bool]:
    state = query.one_of("state", "open", "done")
    kind = query.one_of("kind", *KINDS)
    finish, part = query.text("finish"), query.text("q")
    longer_s = (query.number("min_ms", 0, 1e9) or 0.0) / 1000
    before = query.integer("before", 0, 10**12)
    now = watch.journal.clock()

    def wanted(request: RequestTrace) -> bool:
        return (
            (before is None or request.number < before)
            and (state is None or (state == "open") == (request.end is None))
            and (kind is None or request.kind == kind)
            and (finish is None or request.finish == finish)
            and ((now if request.end is None else request.end) - request.accepted >= longer_s)
            and (part is None or part in request.id or part in request.request_id or _has_text(watch, request, part))
        )

    return wanted


def _has_text(watch: Watch, request: RequestTrace, part: str) -> bool:
    prompts = (watch.view.text(tokens) for tokens in request.prompts or ())
    return any(part in text for text in (*(request.answers or ()), *prompts))


def _found(watch: Watch, name: str) -> RequestTrace:
    found = watch.journal.find(name)
    if found is None:
        raise NotFound(f"no request {name[:128]!r} is kept; the last {len(watch.journal.done)} are")
    return found


def _replay(watch: Watch, limit: int, batch: int) -> Shown:
    journal = watch.journal
    cost = fit(recent(journal))
    recorded = [
        (request, sequence)
        for request in list(journal.done)[-limit:]
        for sequence in request.sequences
        if sequence.admitted is not None and sequence.output_tokens and request.kind != LAB
    ][-limit:]
    begin = min((sequence.queued for _, sequence in recorded), default=0.0)
    jobs = [
        replay.Job(
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
        "requests": [job.told() for job in jobs],
        "static": replay.static(jobs, batch, cost) if computed and cost is not None else None,
        "continuous": replay.continuous(jobs, batch, cost) if computed and cost is not None else None,
    }


def _add_steps(app: FastAPI, watch: Watch) -> None:
    @app.get("/observe/steps", include_in_schema=False)
    async def steps(request: Request) -> Response:
        query = Query(request, "last", "from", "to", "columns", "rows")
        kept = watch.journal.steps
        columns = query.integer("columns", 1, MAX_COLUMNS) or 2000
        end = query.integer("to", 0, 10**12)
        end = kept.last if end is None else min(end, kept.last)
        begin = query.integer("from", 0, 10**12)
        if begin is None:
            begin = end - (query.integer("last", 1, 10**6) or 400) + 1
        rows = query.integer("rows", 0, 1) != 0
        if end - begin < OFF_LOOP:
            return _json(window(watch.journal, begin, end, columns, rows=rows))
        return _json(await asyncio.to_thread(window, watch.journal, begin, end, columns, rows=rows))


def _add_cache(app: FastAPI, desk: Desk, watch: Watch) -> None:
    journal = watch.journal

    @app.get("/observe/cache", include_in_schema=False)
    async def cache(request: Request) -> Response:
        Query(request)
        return _json(_page_map(watch, await _ask(desk, "page_map")))

    @app.get("/observe/cache/tree", include_in_schema=False)
    async def tree(request: Request) -> Response:
        query = Query(request, "limit", "request")
        name = query.text("request")
        numbers = [] if name is None else [sequence.number for sequence in _found(watch, name).sequences]
        limit = query.integer("limit", 1, 2000) or 400
        return _json(await _ask(desk, "prefix_tree", limit=limit, numbers=numbers))

    @app.post("/observe/cache/explain", include_in_schema=False)
    async def explain(request: Request) -> Response:
        body = parse(lab.ExplainRequest, await read_json(request))
        asked = body.to_request("", SamplingParams())
        tokens = await asyncio.to_thread(desk.prompt_tokens, asked)
        found = await _ask(desk, "explain", tokens=tokens, salt=body.cache_salt or "")
        told = explanation(
            Finding(*found["finding"]), len(tokens), found["cached"], found["block_size"], tokens,
            lambda part: desk.tokenizer.decode(list(part), skip_special=False),
        )  # fmt: skip
        return _json({**(told or {}), "t": journal.at(journal.clock())})


def _page_map(watch: Watch, found: Shown) -> Shown:
    journal = watch.journal
    now = journal.clock()
    evictions = found["evictions"]
    sequences = {}
    for number, one in found["sequences"].items():
        owner = journal.sequence(int(number))
        sequences[number] = {**one, "request": owner[0].number if owner else None}
    waste = sum(one["waste_tokens"] for one in sequences.values())
    room = sum(one["blocks"] for one in sequences.values()) * found["block_size"]
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
            "last_60_s": sum(now - one["at"] < 60 for one in evictions["recent"]),
            "recent": [{**one, "t": journal.at(one.pop("at"))} for one in evictions["recent"]],
        },
        "hits": {"prompt_tokens": prompts, "hit_tokens": hits, "ratio": round(hits / prompts, 4) if prompts else 0.0},
        "ghosts": evictions["ghosts"],
    }


def _add_lab(app: FastAPI, desk: Desk) -> None:
    @app.post("/observe/lab", include_in_schema=False)
    async def laboratory(request: Request) -> Response:
        with Visit(request.scope, LAB, desk.emit) as visit:
            body = parse(lab.LabRequest, await read_json(request))
            visit.parsed()
            params = lab.sampling(body)
            forced = body.forced or []
            tokens = await asyncio.to_thread(desk.prompt_tokens, body.to_request("", params))
            asked = flow.Request(
                id=visit.name,
                params=params,
                tokens=[*tokens, *forced],
                forced=len(forced),
                inspect=body.top or lab.DEFAULT_TOP,
            )
            visit.validated([asked])
            ticket = await desk.submit([asked])

            def write(flights: Sequence[Flight]) -> bytes:
                return lab.answer(body, flights, desk.tokenizer, desk.files.spec.vocab_size)

            return Whole(desk, ticket, write)


async def _ask(desk: Desk, kind: str, **arguments: Any) -> Any:
    try:
        async with asyncio.timeout(ASK_WAIT_S):
            return await desk.replica.ask(kind, **arguments)
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
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(value) + b"\n\n"


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
