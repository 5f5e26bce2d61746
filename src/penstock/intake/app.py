"""The HTTP application: which route does what. Bodies are parsed and written by `intake.openai`, never by FastAPI."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

import penstock
from penstock import flow
from penstock.errors import MediaTypeUnsupported, MethodNotAllowed, NotFound, PenstockError
from penstock.intake import docs
from penstock.intake.desk import Desk
from penstock.intake.failure import failure
from penstock.intake.guards import OPEN_PATHS, BodyLimit, Keys, RequestIds
from penstock.intake.openai import chat, completions, embeddings, models, openapi, tokens
from penstock.intake.openai.parse import parse
from penstock.intake.problems import ErrorBody
from penstock.intake.respond import EventStream, Whole, Writer
from penstock.pipeline import Flight
from penstock.route.replica import Ticket
from penstock.settings import ServeSettings, parse_bytes

STATS_WAIT_S = 2.0  # a scrape does not wait longer for an engine in a long step
CLIENT_GONE = 499  # as nginx has it: the client hung up before its request was complete


def build(desk: Desk, settings: ServeSettings) -> ASGIApp:
    app = FastAPI(title="Penstock", version=penstock.__version__, docs_url=None, redoc_url=None)
    _add_generation(app, desk)
    _add_embeddings(app, desk)
    _add_models_and_tokens(app, desk)
    _add_operations(app, desk)
    docs.add(app, openapi.components(), model=desk.files.name, keyless=OPEN_PATHS if settings.keys else None)
    _add_failures(app)
    guarded = BodyLimit(app, parse_bytes(settings.max_body, "max_body"))
    return RequestIds(Keys(guarded, settings.keys))


def _add_generation(app: FastAPI, desk: Desk) -> None:
    @app.post("/v1/chat/completions", **_documented(chat.REQUEST, chat.RESPONSE, chunk=chat.CHUNK))
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation."""
        body = parse(chat.REQUEST, await _body(request))
        desk.check_model(body.model)
        name = uuid.uuid4().hex
        writer = chat.ChatWriter(body, request_id=name, **_about(desk))
        asked = chat.to_requests(body, request_id=name, recommended=desk.files.sampling)
        return _respond(desk, await desk.submit(asked), writer, stream=body.stream)

    @app.post("/v1/completions", **_documented(completions.REQUEST, completions.RESPONSE, chunk=completions.CHUNK))
    async def text_completions(request: Request) -> Response:
        """Continue one or several prompts."""
        body = parse(completions.REQUEST, await _body(request))
        desk.check_model(body.model)
        name = uuid.uuid4().hex
        writer = completions.CompletionWriter(body, request_id=name, **_about(desk))
        asked = completions.to_requests(body, request_id=name, recommended=desk.files.sampling)
        return _respond(desk, await desk.submit(asked), writer, stream=body.stream)


def _add_embeddings(app: FastAPI, desk: Desk) -> None:
    @app.post("/v1/embeddings", **_documented(embeddings.REQUEST, embeddings.RESPONSE, computed=True))
    async def embed(request: Request) -> Response:
        """Turn one or several texts into vectors of unit length."""
        body = parse(embeddings.REQUEST, await _body(request))
        desk.check_model(body.model)

        def write(flights: Sequence[Flight]) -> bytes:
            vectors = [flight.embedding() for flight in flights]
            count = sum(len(flight.submits[0].tokens) for flight in flights)
            return embeddings.whole(body, vectors, model=desk.files.name, prompt_tokens=count)

        return Whole(desk, await desk.submit(_to_embed(body)), write)


def _to_embed(body: embeddings.EmbeddingRequest) -> list[flow.Request]:
    """One for each input, in order."""
    name = uuid.uuid4().hex
    return [
        flow.Request(
            id=f"{name}-{place}",
            params=flow.SamplingParams(),
            text=given if isinstance(given, str) else None,
            tokens=None if isinstance(given, str) else given,
            task="embed",
            pooling=embeddings.pooling(body),
        )
        for place, given in enumerate(embeddings.inputs(body))
    ]


async def _body(request: Request) -> bytes:
    """Only what says that it is JSON: anything else a browser would send from any page, without asking first."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        given = f", not as {kind[:64]}" if kind else ""
        raise MediaTypeUnsupported(f"send the body with content-type: application/json{given}")
    return await request.body()


def _about(desk: Desk) -> dict[str, Any]:
    """What answers say of their origin."""
    return {"model": desk.files.name, "created": int(time.time()), "vocabulary": desk.tokenizer}


def _respond(desk: Desk, ticket: Ticket, writer: Writer, *, stream: bool | None) -> Response:
    if stream:
        return EventStream(desk, ticket, writer)
    return Whole(desk, ticket, lambda flights: writer.whole([flight.completion() for flight in flights]))


def _add_models_and_tokens(app: FastAPI, desk: Desk) -> None:
    def model() -> models.Model:
        return models.Model(id=desk.files.name, created=desk.created, max_model_len=desk.pipeline.context)

    @app.get("/v1/models", **_documented(None, models.ModelList))
    async def list_models() -> Response:
        """The models of this server."""
        return _json(models.listed([model()]))

    @app.get("/v1/models/{model_id:path}", **_documented(None, models.Model))
    async def retrieve_model(model_id: str) -> Response:
        """One model."""
        desk.check_model(model_id)
        return _json(models.one(model()))

    @app.post("/tokenize", **_documented(tokens.TokenizeRequest, tokens.Tokens))
    async def tokenize(request: Request) -> Response:
        """The token ids of a text or a conversation."""
        body = parse(tokens.TokenizeRequest, await _body(request))
        if body.model is not None:
            desk.check_model(body.model)
        ids = await asyncio.to_thread(desk.tokenize, body)
        return _json(tokens.tokenized(body, ids, context=desk.pipeline.context, vocabulary=desk.tokenizer))

    @app.post("/detokenize", **_documented(tokens.DetokenizeRequest, tokens.Text))
    async def detokenize(request: Request) -> Response:
        """The text of token ids."""
        body = parse(tokens.DetokenizeRequest, await _body(request))
        if body.model is not None:
            desk.check_model(body.model)
        text = await asyncio.to_thread(desk.detokenize, body.tokens)
        return _json(tokens.detokenized(text))


def _add_operations(app: FastAPI, desk: Desk) -> None:
    @app.get("/health", **_stated(_STATUS, "The process answers."))
    async def health() -> Response:
        """Whether the process is there. Needs no key."""
        return _json(b'{"status":"ok"}')

    @app.get("/ready", **_stated(_STATUS, "Now.", but="Not yet, or not any more."))
    async def ready() -> Response:
        """Whether requests are taken: the engine is up and the server is not shutting down."""
        state = "shutting down" if desk.closing else desk.replica.state.value
        return _json(msgspec.json.encode({"status": state}), 200 if desk.ready else 503)

    @app.get("/version", **_stated(_FACTS, "The answer."))
    async def version() -> Response:
        """The server's version, and what it runs."""
        facts = {"version": penstock.__version__, "model": desk.files.name, **desk.replica.facts}
        return _json(msgspec.json.encode(facts))

    @app.get("/metrics", **_stated(_EXPOSITION, "The answer."))
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
        )
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_failures(app: FastAPI) -> None:
    async def on_error(request: Request, error: Exception) -> Response:
        return failure(error, request.scope)

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        where = f"{request.method} {request.url.path}"
        kind = MethodNotAllowed if error.status_code == 405 else NotFound
        return failure(kind(f"there is no {where} here; /docs lists what there is"), request.scope, error.headers)

    async def on_hang_up(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_GONE)  # for the log: nobody is there to read it

    app.add_exception_handler(ClientDisconnect, on_hang_up)
    app.add_exception_handler(PenstockError, on_error)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_error)


_STATUS = {
    "application/json": {
        "schema": {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}
    }
}
_FACTS = {
    "application/json": {
        "schema": {
            "type": "object",
            "properties": {"version": {"type": "string"}, "model": {"type": "string"}},
            "required": ["version", "model"],
        }
    }
}
_EXPOSITION = {"text/plain": {"schema": {"type": "string"}}}
_NO_KEY = openapi.response(ErrorBody, "No API key, or a wrong one.")


def _stated(content: dict[str, Any], description: str, *, but: str | None = None) -> dict[str, Any]:
    """What FastAPI is told of a route that answers operators. `but`: when the same comes with a 503."""
    described: dict[int | str, Any] = {200: {"description": description, "content": content}, 401: _NO_KEY}
    if but is not None:
        described[503] = {"description": but, "content": content}
    return {"responses": described, "response_class": Response}


def _documented(
    request: type[BaseModel] | None,
    answer: type[msgspec.Struct],
    *,
    chunk: type[msgspec.Struct] | None = None,
    computed: bool = False,
) -> dict[str, Any]:
    """What FastAPI is told of a route, for the OpenAPI document. `computed`: by the engine, as all that is streamed."""
    described = {200: openapi.response(answer, "The answer.", chunk=chunk), 401: _NO_KEY}
    if answer is not models.ModelList:
        described[404] = openapi.response(ErrorBody, "No such model.")
    if request is not None:
        described[400] = openapi.response(ErrorBody, "A field is wrong; `param` names it.")
        described[413] = openapi.response(ErrorBody, "The body is too large.")
        described[415] = openapi.response(ErrorBody, "The content-type is not application/json.")
    if computed or chunk is not None:
        described[429] = openapi.response(ErrorBody, "The queue is full; Retry-After says when to come back.")
        described[500] = openapi.response(ErrorBody, "Something broke; the message has an id to quote.")
        described[503] = openapi.response(ErrorBody, "The engine is not there, or the server is shutting down.")
    extra = openapi.request_body(request) if request is not None else {}
    return {"responses": described, "openapi_extra": extra, "response_class": Response}


def _json(data: bytes, status: int = 200) -> Response:
    return Response(data, status, media_type="application/json")
