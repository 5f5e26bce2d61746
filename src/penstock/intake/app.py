"""The HTTP application: which route does what. Bodies are parsed and written by `intake.openai` and `intake.anthropic`,
never by FastAPI."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route, request_response
from starlette.types import ASGIApp, Scope

import penstock
from penstock import flow
from penstock.errors import MethodNotAllowed, NotFound, PenstockError
from penstock.intake import chat_routes, docs, glass, openapi, plan, response_routes, ui
from penstock.intake.anthropic import messages
from penstock.intake.anthropic.problems import AnthropicErrorBody
from penstock.intake.body import read, read_object
from penstock.intake.body_limit import BodyLimit
from penstock.intake.described import EXPOSITION, FACTS, STATUS, documented, stated
from penstock.intake.desk import Desk
from penstock.intake.failure import failure
from penstock.intake.guards import OPEN_PATHS, Heads, Keys, RequestIds, shared
from penstock.intake.hosts import Hosts
from penstock.intake.ollama import routes as ollama
from penstock.intake.openai import chat, completions, embeddings, models, tokens
from penstock.intake.openai.responses.store import ResponseStore
from penstock.intake.openai.schemas import Generation
from penstock.intake.problems import called
from penstock.intake.respond import EventStream, Whole, Writer
from penstock.intake.tenants import tenant_of
from penstock.intake.turnstile import Turnstile
from penstock.intake.unversioned import Unversioned
from penstock.intake.visit import CLIENT_GONE, Visit
from penstock.observe.gpu import Gpu
from penstock.observe.watch import Watch
from penstock.pipeline import Flight
from penstock.plan.answer import Plan
from penstock.plan.budget import Budget
from penstock.plan.question import Question
from penstock.route.ticket import Ticket
from penstock.settings import Settings, parse_bytes

Asked = TypeVar("Asked", bound=Generation)

STATS_WAIT_S = 2.0  # a scrape does not wait longer for an engine in a long step


def build(desk: Desk, settings: Settings, watch: Watch | None = None) -> ASGIApp:
    app = FastAPI(title="Penstock", version=penstock.__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    chats = ResponseStore(what="completion")
    _add_generation(app, desk, chats)
    chat_routes.add(app, chats)
    response_routes.add(app, desk, ResponseStore())
    _add_messages(app, desk)
    _add_embeddings(app, desk)
    _add_models_and_tokens(app, desk)
    ollama.add(app, desk)
    _add_planner(app, desk, watch)
    _add_operations(app, desk)
    glass.add(app, desk, watch, settings)
    ui.add(app)
    keys = settings.serve.keys
    docs.add(app, openapi.components(), model=desk.files.name, keyless=OPEN_PATHS if keys else None)
    _add_failures(app)
    _skip_dependencies(app)
    guarded: ASGIApp = BodyLimit(Turnstile(app), parse_bytes(settings.serve.max_body, "max_body"))
    guarded = shared(Heads(Keys(guarded, keys)), settings.serve.origins)
    guarded = Unversioned(guarded, [route.path for route in app.routes if isinstance(route, Route)])
    guarded = Hosts(guarded, settings.serve, always=OPEN_PATHS)
    return RequestIds(guarded, traced=settings.observe.otel_endpoint is not None)


def _add_generation(app: FastAPI, desk: Desk, chats: ResponseStore) -> None:
    async def completed(
        request: Request,
        kind: str,
        schema: type[Asked],
        to_requests: Callable[..., list[flow.Request]],
        written: Callable[..., Writer],
    ) -> Response:
        with Visit(request.scope, kind, desk.emit) as visit:
            body = await read(schema, request)
            visit.parsed(stream=bool(body.stream))
            desk.check_model(body.model)
            about = {"model": desk.files.name, "created": int(time.time()), "vocabulary": desk.tokenizer}
            writer = written(body, request_id=visit.name, **about)
            with called(body.names()):
                asked = to_requests(body, request_id=visit.name, recommended=desk.files.sampling)
                visit.validated(asked)
                ticket = await desk.submit(asked, visit.tenant)
            return _respond(desk, ticket, writer, stream=body.stream)

    @app.post("/v1/chat/completions", **documented(chat.REQUEST, chat.RESPONSE, chunk=chat.CHUNK))
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation."""
        writer = partial(chat.ChatWriter, keep=partial(chats.keep, tenant_of(request.scope)))
        return await completed(request, "chat", chat.REQUEST, chat.to_requests, writer)

    @app.post("/v1/completions", **documented(completions.REQUEST, completions.RESPONSE, chunk=completions.CHUNK))
    async def text_completions(request: Request) -> Response:
        """Continue one or several prompts."""
        api = completions
        return await completed(request, "completion", api.REQUEST, api.to_requests, api.CompletionWriter)


def _add_messages(app: FastAPI, desk: Desk) -> None:
    error = AnthropicErrorBody

    @app.post("/v1/messages", **documented(messages.REQUEST, messages.RESPONSE, events=messages.EVENTS, error=error))
    async def create_message(request: Request) -> Response:
        """Answer a conversation, in Anthropic's way."""
        with Visit(request.scope, "message", desk.emit) as visit:
            body = await read(messages.REQUEST, request)
            visit.parsed(stream=bool(body.stream))
            desk.check_model(body.model)
            writer = messages.MessageWriter(request_id=visit.name, model=desk.files.name)
            with called(messages.names(body)):
                asked = messages.to_request(
                    body, request_id=visit.name, recommended=desk.files.sampling, variables=desk.template_variables
                )
                visit.validated([asked])
                ticket = await desk.submit([asked], visit.tenant)
            return _respond(desk, ticket, writer, stream=body.stream)

    @app.post("/v1/messages/count_tokens", **documented(messages.COUNT, messages.COUNTED, error=error))
    async def count_tokens(request: Request) -> Response:
        """How many tokens a conversation has as a prompt."""
        body = await read(messages.COUNT, request)
        desk.check_model(body.model)
        with called(messages.names(body)):
            asked = messages.to_count(body, variables=desk.template_variables)
            tokens = await asyncio.to_thread(desk.pipeline.tokenize, asked)
        return _json(messages.counted(tokens))


def _add_embeddings(app: FastAPI, desk: Desk) -> None:
    @app.post("/v1/embeddings", **documented(embeddings.REQUEST, embeddings.RESPONSE, computed=True))
    async def embed(request: Request) -> Response:
        """Turn one or several texts into vectors of unit length."""

        def write(flights: Sequence[Flight]) -> bytes:
            vectors = [flight.embedding() for flight in flights]
            count = sum(len(flight.submits[0].tokens) for flight in flights)
            return embeddings.whole(body, vectors, model=desk.files.name, prompt_tokens=count)

        with Visit(request.scope, "embedding", desk.emit) as visit:
            body = await read(embeddings.REQUEST, request)
            visit.parsed()
            desk.check_model(body.model)
            asked = _to_embed(body, visit.name)
            visit.validated(asked)
            return Whole(desk, await desk.submit(asked, visit.tenant), write)


def _to_embed(body: embeddings.EmbeddingRequest, name: str) -> list[flow.Request]:
    """One for each input, in order."""
    return [
        flow.Request(
            id=f"{name}-{place}",
            params=flow.SamplingParams(),
            text=given if isinstance(given, str) else None,
            tokens=None if isinstance(given, str) else given,
            task="embed",
            pooling=embeddings.pooling(body),
            truncate_prompt_tokens=body.truncate_prompt_tokens,
        )
        for place, given in enumerate(embeddings.inputs(body))
    ]


def _respond(desk: Desk, ticket: Ticket, writer: Writer, *, stream: bool | None) -> Response:
    if stream:
        return EventStream(desk, ticket, writer)
    return Whole(desk, ticket, lambda flights: writer.whole([flight.completion() for flight in flights]))


def _add_models_and_tokens(app: FastAPI, desk: Desk) -> None:
    def model() -> models.Model:
        return models.Model(id=desk.files.name, created=desk.created, max_model_len=desk.pipeline.context)

    @app.get("/v1/models", **documented(None, models.ModelList))
    async def list_models() -> Response:
        """The models of this server."""
        return _json(models.listed([model()]))

    @app.get("/v1/models/{model_id:path}", **documented(None, models.Model))
    async def retrieve_model(model_id: str) -> Response:
        """One model."""
        desk.check_model(model_id)
        return _json(models.one(model()))

    @app.post("/tokenize", **documented(tokens.TokenizeRequest, tokens.Tokens))
    async def tokenize(request: Request) -> Response:
        """The token ids of a text or a conversation."""
        body = await read(tokens.TokenizeRequest, request)
        desk.check_model(body.model)
        ids = await asyncio.to_thread(desk.tokenize, body)
        return _json(tokens.tokenized(body, ids, context=desk.pipeline.context, vocabulary=desk.tokenizer))

    @app.get("/tokenizer_info", **documented(None, tokens.TokenizerInfo))
    async def tokenizer_info() -> Response:
        """The model's tokenizer, as its tokenizer_config.json has it."""
        return _json(tokens.info(desk.files, desk.tokenizer, context=desk.pipeline.context))

    @app.post("/detokenize", **documented(tokens.DetokenizeRequest, tokens.Text))
    async def detokenize(request: Request) -> Response:
        """The text of token ids."""
        body = await read(tokens.DetokenizeRequest, request)
        desk.check_model(body.model)
        text = await asyncio.to_thread(desk.detokenize, body.tokens)
        return _json(tokens.detokenized(text))


def _add_planner(app: FastAPI, desk: Desk, watch: Watch | None) -> None:
    @app.get("/plan/presets", **documented(None, plan.Presets))
    async def plan_presets() -> Response:
        """Models and hardware that the planner knows by name."""
        return _json(plan.presets(desk))

    @app.post("/plan", **documented(Question, Plan))
    async def plan_capacity(request: Request) -> Response:
        """What a model needs of a machine and can do on it. Computed; nothing is run."""
        values = await read_object(request)
        seen = None if watch is None else plan.observed(desk, watch.journal)
        return _json(await asyncio.to_thread(plan.planned, desk, values, seen))

    @app.post("/plan/budget", **documented(plan.BudgetRequest, Budget))
    async def plan_budget(request: Request) -> Response:
        """How the parts of a prompt and its answer share the context."""
        body = await read(plan.BudgetRequest, request)
        return _json(await asyncio.to_thread(plan.budgeted, desk, body))


def _add_operations(app: FastAPI, desk: Desk) -> None:
    gpu = Gpu()

    @app.get("/health", **stated(STATUS, "The process answers."))
    async def health() -> Response:
        """Whether the process is there. Needs no key."""
        return _json(b'{"status":"ok"}')

    @app.get("/ready", **stated(STATUS, "Now.", but="Not yet, or not any more."))
    async def ready() -> Response:
        """Whether requests are taken: the engine is up and the server is not shutting down. Needs no key."""
        state = "shutting down" if desk.closing else desk.replica.state.value
        return _json(msgspec.json.encode({"status": state}), 200 if desk.ready else 503)

    @app.get("/version", **stated(FACTS, "The answer."))
    async def version() -> Response:
        """The server's version, and what it runs."""
        facts = {"version": penstock.__version__, "model": desk.files.name, **desk.replica.facts}
        return _json(msgspec.json.encode(facts))

    @app.get("/metrics", **stated(EXPOSITION, "The answer."))
    async def metrics() -> Response:
        """For Prometheus."""
        stats: dict[str, Any] | None = None
        try:
            async with asyncio.timeout(STATS_WAIT_S):
                stats = await desk.replica.ask("stats")
        except (PenstockError, TimeoutError):
            pass
        text = desk.metrics.text(
            stats,
            restarts=desk.replica.restarts,
            ready=desk.ready,
            open_requests=desk.open,
            tasks=len(asyncio.all_tasks()),
            engine_pid=desk.replica.facts.get("pid") if stats is not None else None,
            gpu=gpu.read(),
        )
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_failures(app: FastAPI) -> None:
    async def on_error(request: Request, error: Exception) -> Response:
        return failure(error, request.scope)

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        method, path = request.method, request.url.path
        if error.status_code == 405:
            allowed = ", ".join(_methods(app, request.scope))
            told = MethodNotAllowed(f"{path} does not take {method}, only {allowed}; /docs says how")
            return failure(told, request.scope, {"allow": allowed})
        return failure(NotFound(f"there is no {method} {path} here; /docs lists it all"), request.scope, error.headers)

    async def on_hang_up(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_GONE)  # for the log: nobody is there to read it

    app.add_exception_handler(ClientDisconnect, on_hang_up)
    app.add_exception_handler(PenstockError, on_error)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_error)


def _skip_dependencies(app: FastAPI) -> None:
    """Routes that take nothing but the request are called as Starlette does. FastAPI would look for dependencies and
    parameters first, which takes it a sixth of a request's time; none of ours has any."""
    for route in app.routes:
        if isinstance(route, Route) and [*inspect.signature(route.endpoint).parameters] == ["request"]:
            route.app = request_response(route.endpoint)


def _methods(app: FastAPI, scope: Scope) -> list[str]:
    """All that the path knows; Starlette tells those of its first route only, and HEAD goes where GET does."""
    routes = [route for route in app.routes if isinstance(route, Route) and route.matches(scope)[0] is Match.PARTIAL]
    exact = [route for route in routes if route.path == scope["path"]]  # others take its last part for a name
    known = {method for route in exact or routes for method in route.methods or ()}
    return sorted(known | ({"HEAD"} if "GET" in known else set()))


def _json(data: bytes, status: int = 200) -> Response:
    return Response(data, status, media_type="application/json")
