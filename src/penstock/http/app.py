"""The HTTP application: which route does what. Bodies are parsed and written by `http.api.openai` and
`http.api.anthropic`, never by FastAPI."""

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
from penstock.capacity.answer import Plan
from penstock.capacity.budget import Budget
from penstock.capacity.question import Question
from penstock.deployment.ticket import Ticket
from penstock.errors import MethodNotAllowed, NotFound, PenstockError
from penstock.http import ui
from penstock.http.api import capacity_routes
from penstock.http.api.anthropic import messages
from penstock.http.api.anthropic.error_body import AnthropicErrorBody
from penstock.http.api.ollama import routes as ollama
from penstock.http.api.openai import chat, completions, embeddings, models, stored_routes
from penstock.http.api.openai import tokenize as tokenizing
from penstock.http.api.openai.schemas import Generation
from penstock.http.api.responses import routes as response_routes
from penstock.http.api.responses.store import ResponseStore
from penstock.http.debug import routes as debug_routes
from penstock.http.error_body import called
from penstock.http.error_response import failure
from penstock.http.middleware.body_limit import BodyLimit
from penstock.http.middleware.guards import OPEN_PATHS, Heads, Keys, RequestIds, shared
from penstock.http.middleware.hosts import Hosts
from penstock.http.middleware.tenants import tenant_of
from penstock.http.middleware.turnstile import Turnstile
from penstock.http.middleware.unversioned import Unversioned
from penstock.http.openapi import page, schemas
from penstock.http.openapi.routes import EXPOSITION, FACTS, STATUS, documented, stated
from penstock.http.parse.body import read, read_object
from penstock.http.request_events import CLIENT_GONE, RequestEvents
from penstock.http.service import Service
from penstock.http.streaming import EventStream, Whole, Writer
from penstock.observe.gpu import Gpu
from penstock.observe.metrics import ReplicaStatus
from penstock.observe.watch import Watch
from penstock.pipeline import ActiveRequest
from penstock.settings import Settings, parse_bytes

Asked = TypeVar("Asked", bound=Generation)

STATS_WAIT_S = 2.0  # a scrape does not wait longer for an engine in a long step


def build(service: Service, settings: Settings, watch: Watch | None = None) -> ASGIApp:
    app = FastAPI(title="Penstock", version=penstock.__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    chats = ResponseStore(what="completion")
    _add_generation(app, service, chats)
    stored_routes.add(app, chats)
    response_routes.add(app, service, ResponseStore())
    _add_messages(app, service)
    _add_embeddings(app, service)
    _add_models_and_tokens(app, service)
    ollama.add(app, service)
    _add_planner(app, service, watch)
    _add_operations(app, service)
    debug_routes.add(app, service, watch, settings)
    ui.add(app)
    keys = settings.serve.keys
    page.add(app, schemas.components(), model=service.files.name, keyless=OPEN_PATHS if keys else None)
    _add_failures(app)
    _skip_dependencies(app)
    guarded: ASGIApp = BodyLimit(Turnstile(app), parse_bytes(settings.serve.max_body, "max_body"))
    guarded = shared(Heads(Keys(guarded, keys)), settings.serve.origins)
    guarded = Unversioned(guarded, [route.path for route in app.routes if isinstance(route, Route)])
    guarded = Hosts(guarded, settings.serve, always=OPEN_PATHS)
    return RequestIds(guarded, traced=settings.observe.otel_endpoint is not None)


def _add_generation(app: FastAPI, service: Service, chats: ResponseStore) -> None:
    async def completed(
        request: Request,
        kind: str,
        schema: type[Asked],
        to_requests: Callable[..., list[flow.Request]],
        written: Callable[..., Writer],
    ) -> Response:
        with RequestEvents(request.scope, kind, service.emit) as events:
            body = await read(schema, request)
            events.parsed(stream=bool(body.stream))
            service.check_model(body.model)
            about = {"model": service.files.name, "created": int(time.time()), "vocabulary": service.tokenizer}
            writer = written(body, request_id=events.name, **about)
            with called(body.names()):
                asked = to_requests(body, request_id=events.name, recommended=service.files.sampling)
                events.validated(asked)
                ticket = await service.submit(asked, events.tenant)
            return _respond(service, ticket, writer, stream=body.stream)

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


def _add_messages(app: FastAPI, service: Service) -> None:
    error = AnthropicErrorBody

    @app.post("/v1/messages", **documented(messages.REQUEST, messages.RESPONSE, events=messages.EVENTS, error=error))
    async def create_message(request: Request) -> Response:
        """Answer a conversation, in Anthropic's way."""
        with RequestEvents(request.scope, "message", service.emit) as events:
            body = await read(messages.REQUEST, request)
            events.parsed(stream=bool(body.stream))
            service.check_model(body.model)
            writer = messages.MessageWriter(request_id=events.name, model=service.files.name)
            with called(messages.names(body)):
                asked = messages.to_request(
                    body,
                    request_id=events.name,
                    recommended=service.files.sampling,
                    variables=service.template_variables,
                )
                events.validated([asked])
                ticket = await service.submit([asked], events.tenant)
            return _respond(service, ticket, writer, stream=body.stream)

    @app.post("/v1/messages/count_tokens", **documented(messages.COUNT, messages.COUNTED, error=error))
    async def count_tokens(request: Request) -> Response:
        """How many tokens a conversation has as a prompt."""
        body = await read(messages.COUNT, request)
        service.check_model(body.model)
        with called(messages.names(body)):
            asked = messages.to_count(body, variables=service.template_variables)
            tokens = await asyncio.to_thread(service.pipeline.tokenize, asked)
        return _json(messages.counted(tokens))


def _add_embeddings(app: FastAPI, service: Service) -> None:
    @app.post("/v1/embeddings", **documented(embeddings.REQUEST, embeddings.RESPONSE, computed=True))
    async def embed(request: Request) -> Response:
        """Turn one or several texts into vectors of unit length."""

        def write(active_requests: Sequence[ActiveRequest]) -> bytes:
            vectors = [active.embedding() for active in active_requests]
            count = sum(len(active.submits[0].tokens) for active in active_requests)
            return embeddings.whole(body, vectors, model=service.files.name, prompt_tokens=count)

        with RequestEvents(request.scope, "embedding", service.emit) as events:
            body = await read(embeddings.REQUEST, request)
            events.parsed()
            service.check_model(body.model)
            asked = _to_embed(body, events.name)
            events.validated(asked)
            return Whole(service, await service.submit(asked, events.tenant), write)


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


def _respond(service: Service, ticket: Ticket, writer: Writer, *, stream: bool | None) -> Response:
    if stream:
        return EventStream(service, ticket, writer)
    return Whole(
        service, ticket, lambda active_requests: writer.whole([active.completion() for active in active_requests])
    )


def _add_models_and_tokens(app: FastAPI, service: Service) -> None:
    def model() -> models.Model:
        return models.Model(id=service.files.name, created=service.created, max_model_len=service.pipeline.context)

    @app.get("/v1/models", **documented(None, models.ModelList))
    async def list_models() -> Response:
        """The models of this server."""
        return _json(models.listed([model()]))

    @app.get("/v1/models/{model_id:path}", **documented(None, models.Model))
    async def retrieve_model(model_id: str) -> Response:
        """One model."""
        service.check_model(model_id)
        return _json(models.one(model()))

    @app.post("/tokenize", **documented(tokenizing.TokenizeRequest, tokenizing.Tokens))
    async def tokenize(request: Request) -> Response:
        """The token ids of a text or a conversation."""
        body = await read(tokenizing.TokenizeRequest, request)
        service.check_model(body.model)
        ids = await asyncio.to_thread(service.tokenize, body)
        return _json(tokenizing.tokenized(body, ids, context=service.pipeline.context, vocabulary=service.tokenizer))

    @app.get("/tokenizer_info", **documented(None, tokenizing.TokenizerInfo))
    async def tokenizer_info() -> Response:
        """The model's tokenizer, as its tokenizer_config.json has it."""
        return _json(tokenizing.info(service.files, service.tokenizer, context=service.pipeline.context))

    @app.post("/detokenize", **documented(tokenizing.DetokenizeRequest, tokenizing.Text))
    async def detokenize(request: Request) -> Response:
        """The text of token ids."""
        body = await read(tokenizing.DetokenizeRequest, request)
        service.check_model(body.model)
        text = await asyncio.to_thread(service.detokenize, body.tokens)
        return _json(tokenizing.detokenized(text))


def _add_planner(app: FastAPI, service: Service, watch: Watch | None) -> None:
    @app.get("/plan/presets", **documented(None, capacity_routes.Presets))
    async def plan_presets() -> Response:
        """Models and hardware that the planner knows by name."""
        return _json(capacity_routes.presets(service))

    @app.post("/plan", **documented(Question, Plan))
    async def plan_capacity(request: Request) -> Response:
        """What a model needs of a machine and can do on it. Computed; nothing is run."""
        values = await read_object(request)
        seen = None if watch is None else capacity_routes.observed(service, watch.journal)
        return _json(await asyncio.to_thread(capacity_routes.planned, service, values, seen))

    @app.post("/plan/budget", **documented(capacity_routes.BudgetRequest, Budget))
    async def plan_budget(request: Request) -> Response:
        """How the parts of a prompt and its answer share the context."""
        body = await read(capacity_routes.BudgetRequest, request)
        return _json(await asyncio.to_thread(capacity_routes.budgeted, service, body))


def _add_operations(app: FastAPI, service: Service) -> None:
    gpu = Gpu()

    @app.get("/health", **stated(STATUS, "The process answers."))
    async def health() -> Response:
        """Whether the process is there. Needs no key."""
        return _json(b'{"status":"ok"}')

    @app.get("/ready", **stated(STATUS, "Now.", but="Not yet, or not any more."))
    async def ready() -> Response:
        """Whether requests are taken: the engine is up and the server is not shutting down. Needs no key."""
        state = "shutting down" if service.closing else service.replica.state.value
        return _json(msgspec.json.encode({"status": state}), 200 if service.ready else 503)

    @app.get("/version", **stated(FACTS, "The answer."))
    async def version() -> Response:
        """The server's version, and what it runs."""
        facts = {"version": penstock.__version__, "model": service.files.name, **service.replica.facts}
        return _json(msgspec.json.encode(facts))

    @app.get("/metrics", **stated(EXPOSITION, "The answer."))
    async def metrics() -> Response:
        """For Prometheus."""
        stats: dict[str, Any] | None = None
        try:
            async with asyncio.timeout(STATS_WAIT_S):
                stats = await service.replica.ask("stats")
        except (PenstockError, TimeoutError):
            pass
        replica = service.replica
        pid = replica.facts.get("pid") if stats is not None else None
        status = ReplicaStatus(replica.source, stats, replica.restarts, service.ready, pid)
        tasks = len(asyncio.all_tasks())
        text = service.metrics.text([status], open_requests=service.open, tasks=tasks, gpu=gpu.read())
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
