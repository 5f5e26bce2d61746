"""The routes of Ollama's API. Their errors have its body (`error_body`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from penstock import flow
from penstock.deployment.local_model import LocalModel
from penstock.deployment.protocol import ServedModel
from penstock.errors import EngineDied, InvalidRequest, NotFound
from penstock.gateway.keys.identity import Identity, Scope
from penstock.http.api.admin.actions import audited
from penstock.http.api.client_field_names import client_field_names
from penstock.http.api.generation_response import generation_response
from penstock.http.api.ollama import embed as embedding
from penstock.http.api.ollama import requests
from penstock.http.api.ollama.error_body import OllamaErrorBody
from penstock.http.api.ollama.keep_alive import UNLOAD_WARNING, asks_to_unload, idle_seconds
from penstock.http.api.ollama.models import (
    API_LEVEL,
    details_of,
    encode_list,
    encode_running,
    find_served,
)
from penstock.http.api.ollama.pull import Pulls
from penstock.http.api.ollama.response_bodies import (
    OllamaChatAnswer,
    OllamaEmbedding,
    OllamaEmbeddingList,
    OllamaGenerateAnswer,
    OllamaModelInfo,
    OllamaModelList,
    OllamaRunningList,
    OllamaStatus,
    OllamaVersion,
)
from penstock.http.api.ollama.schemas import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaGeneration,
    OllamaPullRequest,
    OllamaShowRequest,
)
from penstock.http.api.ollama.writer import ChatLineWriter, GenerateLineWriter, LineWriter, nanoseconds
from penstock.http.error_response import report_error
from penstock.http.json_response import json_response
from penstock.http.middleware.tenants import identity_of
from penstock.http.openapi.route_docs import route_docs
from penstock.http.parse.body import read_body
from penstock.http.request_events import RequestEvents
from penstock.http.response_warnings import HEADER
from penstock.http.routing import App
from penstock.http.service import Service
from penstock.http.streaming import FullResponse
from penstock.stream.active_request import ActiveRequest

Body = TypeVar("Body", bound=OllamaGeneration)

NDJSON = "application/x-ndjson"
RUNNING = "Ollama is running"  # clients look for this text
_route_docs = partial(route_docs, error=OllamaErrorBody)


def add(app: App, service: Service) -> None:
    _add_generation(app, service)
    _add_embeddings(app, service)
    _add_models(app, service)
    _add_pull(app, service, Pulls(service.models, lambda: service.closing))
    _add_unsupported(app)


def running() -> Response:
    """GET / for clients that are not browsers."""
    return PlainTextResponse(RUNNING, headers={"vary": "accept"})


def _add_generation(app: App, service: Service) -> None:
    inference = app.requiring(Scope.INFERENCE)

    async def generate(
        request: Request,
        schema: type[Body],
        writer: type[LineWriter],
        to_request: Callable[..., flow.Request],
        names: dict[str, str],
        is_empty: Callable[[Body], bool],
    ) -> Response:
        with RequestEvents(request.scope, "ollama", service.emit) as events:
            body = await read_body(schema, request, any_type=True)
            events.parsed(model=body.model, stream=body.streamed)
            model = find_served(body.model, service.models_of(events.identity))
            write = writer(
                model=body.model,
                accepted=request.scope["state"]["accepted"],
                vocabulary=model.vocabulary,
            )
            managed = _apply_keep_alive(model, body.keep_alive, events.identity)
            if is_empty(body):
                answer = await _load_response(service, request, model, write, body, managed=managed)
                events.answered()
                return answer
            with client_field_names(names):
                generation = to_request(
                    body.model_copy(update={"keep_alive": None}) if managed else body,
                    request_id=events.name,
                    recommended=model.sampling,
                    context=model.card.context,
                    chat_format=model.chat_format,
                    remote=model.card.capabilities if model.card.remote else (),
                )
                events.validated([generation])
                ticket = await service.submit(model, [generation], events.identity, request.receive)
            return generation_response(service, ticket, write, stream=body.streamed, content_type=NDJSON)

    @inference.post("/api/chat", **_route_docs(OllamaChatRequest, OllamaChatAnswer, lines=OllamaChatAnswer))
    async def ollama_chat(request: Request) -> Response:
        """Answer a conversation, in Ollama's way."""
        return await generate(
            request, OllamaChatRequest, ChatLineWriter, requests.chat_request, requests.CLIENT_NAMES,
            lambda body: not body.messages,
        )  # fmt: skip

    @inference.post(
        "/api/generate", **_route_docs(OllamaGenerateRequest, OllamaGenerateAnswer, lines=OllamaGenerateAnswer)
    )
    async def ollama_generate(request: Request) -> Response:
        """Answer a prompt, in Ollama's way."""
        return await generate(
            request, OllamaGenerateRequest, GenerateLineWriter, requests.generate_request,
            requests.GENERATE_CLIENT_NAMES, lambda body: not body.prompt,
        )  # fmt: skip


def _apply_keep_alive(model: ServedModel, keep_alive: str | float | None, identity: Identity) -> bool:
    """Whether the client can have the model unloaded, so that `keep_alive` has an effect: with the scope `admin` only,
    since others use the model, too."""
    if not isinstance(model, LocalModel) or model.keep_alive is None or Scope.ADMIN not in identity.scopes:
        return False
    if keep_alive is not None:
        model.keep_alive(idle_seconds(keep_alive))
    return True


async def _load_response(
    service: Service, request: Request, model: ServedModel, write: LineWriter, body: OllamaGeneration, *, managed: bool
) -> Response:
    """For a client that asks to load or unload the model; `managed`: it may unload it. Also the only line of a
    stream."""
    if not service.ready:
        raise EngineDied("the model is not loaded: the engine is starting, or the server is shutting down")
    unload = asks_to_unload(body.keep_alive)
    if isinstance(model, LocalModel) and model.keep_alive is not None and service.manager is not None:
        if not unload:  # any request would load it
            await service.manager.load(model)
        elif managed:
            async with audited(service, request, "model.unload", model.name):
                await service.manager.unload(model)
    headers = {HEADER: UNLOAD_WARNING} if unload and not managed else {}
    kind = NDJSON if body.streamed else "application/json"
    line = write.loaded(unloaded=unload and managed)
    return Response(line + (b"\n" if body.streamed else b""), 200, headers, kind)


def _add_embeddings(app: App, service: Service) -> None:
    inference = app.requiring(Scope.INFERENCE)

    async def embed(
        request: Request,
        schema: type[OllamaEmbedRequest] | type[OllamaEmbeddingsRequest],
        write: Callable[[Any, Sequence[bytes], int, float, float | None], bytes],
        names: dict[str, str],
    ) -> Response:
        """`write` takes the body, the vectors, the prompt tokens, the time of arrival and the cost."""

        def finish(active_requests: Sequence[ActiveRequest]) -> bytes:
            count = sum(len(active.submits[0].tokens) for active in active_requests)
            vectors, cost = [active.embedding() for active in active_requests], active_requests[0].cost_usd
            return write(body, vectors, count, request.scope["state"]["accepted"], cost)

        with RequestEvents(request.scope, "embedding", service.emit) as events:
            body = await read_body(schema, request, any_type=True)
            events.parsed(model=body.model)
            model = find_served(body.model, service.models_of(events.identity))
            if _apply_keep_alive(model, body.keep_alive, events.identity):
                body = body.model_copy(update={"keep_alive": None})
            if not embedding.texts_of(body):
                events.answered()
                return json_response(write(body, [], 0, request.scope["state"]["accepted"], None))
            local = model if isinstance(model, LocalModel) else None
            hidden_size = None if local is None else local.files.spec.hidden_size
            context = model.card.context if local is None else local.pipeline.context
            with client_field_names(names):
                generation = embedding.embed_requests(
                    body, request_id=events.name, context=context, hidden_size=hidden_size
                )
                events.validated(generation)
                if local is not None and context is not None and embedding.may_need_truncation(body, context):
                    generation = await asyncio.to_thread(embedding.truncate, generation, local.tokenizer, context)
                return FullResponse(
                    service, await service.submit(model, generation, events.identity, request.receive), finish
                )

    def several(body: Any, vectors: Sequence[bytes], count: int, accepted: float, cost: float | None) -> bytes:
        spent = nanoseconds(time.monotonic() - accepted)
        return embedding.encode_embeddings(body, vectors, prompt_tokens=count, total_duration=spent, cost_usd=cost)

    @inference.post("/api/embed", **_route_docs(OllamaEmbedRequest, OllamaEmbeddingList, uses_engine=True))
    async def ollama_embed(request: Request) -> Response:
        """Turn one or several texts into vectors of unit length, in Ollama's way."""
        return await embed(request, OllamaEmbedRequest, several, {})

    @inference.post("/api/embeddings", **_route_docs(OllamaEmbeddingsRequest, OllamaEmbedding, uses_engine=True))
    async def ollama_embeddings(request: Request) -> Response:
        """Turn a text into a vector: the older form of `/api/embed`."""
        return await embed(
            request, OllamaEmbeddingsRequest, lambda _, vectors, *__: embedding.encode_embedding(vectors),
            embedding.CLIENT_NAMES,
        )  # fmt: skip


def _add_models(app: App, service: Service) -> None:
    any_key = app.requiring(*Scope)

    @any_key.get("/api/tags", **_route_docs(None, OllamaModelList, not_found=None))
    async def ollama_tags(request: Request) -> Response:
        """The models of this server, in Ollama's way."""
        return json_response(encode_list(service.models_of(identity_of(request.scope))))

    @any_key.get("/api/ps", **_route_docs(None, OllamaRunningList, not_found=None))
    async def ollama_ps(request: Request) -> Response:
        """The models that are loaded."""
        models = [] if service.closing else service.models_of(identity_of(request.scope)).local
        return json_response(encode_running(models, service.expires_in))

    @any_key.post("/api/show", **_route_docs(OllamaShowRequest, OllamaModelInfo))
    async def ollama_show(request: Request) -> Response:
        """What a model is: its shape, its chat template, what it can do."""
        body = await read_body(OllamaShowRequest, request, any_type=True)
        model = find_served(body.model_name, service.models_of(identity_of(request.scope)))
        return json_response(details_of(model).shown())

    @any_key.get("/api/version", **_route_docs(None, OllamaVersion, not_found=None))
    async def ollama_version() -> Response:
        """The version of Ollama whose API this is. `GET /version` has the server's own."""
        return json_response(msgspec.json.encode(OllamaVersion(version=API_LEVEL)))


def _add_pull(app: App, service: Service, pulls: Pulls) -> None:
    admin = app.requiring(Scope.ADMIN)

    @admin.post("/api/pull", **_route_docs(OllamaPullRequest, OllamaStatus, lines=OllamaStatus))
    async def ollama_pull(request: Request) -> Response:
        """Fetch a model of the catalogue. It is not served by that."""
        body = await read_body(OllamaPullRequest, request, any_type=True)
        pulls.find(body.model_name)
        if body.stream is not False:
            return StreamingResponse(lines(body.model_name, request), media_type=NDJSON)
        last = b""
        async with audited(service, request, "model.pull", body.model_name):
            async for line in pulls.lines(body.model_name):
                last = line
                if await request.is_disconnected():
                    break
        return json_response(last)

    async def lines(name: str, request: Request) -> AsyncIterator[bytes]:
        try:
            async with audited(service, request, "model.pull", name):
                async for line in pulls.lines(name):
                    yield line
        except Exception as error:
            yield report_error(error, request.scope).body + b"\n"


def _add_unsupported(app: App) -> None:
    """Ollama's routes for managing models. Always errors, and not in /openapi.json."""
    any_key = app.requiring(*Scope)

    def reject(what: str) -> Callable[[], Any]:
        async def unsupported() -> Response:
            raise InvalidRequest(f"{what} is not supported: this server serves only the model that it was started with")

        return unsupported

    for method, path, what in (
        ("POST", "/api/create", "creating a model"),
        ("POST", "/api/copy", "copying a model"),
        ("DELETE", "/api/delete", "deleting a model"),
        ("POST", "/api/push", "pushing a model"),
        ("POST", "/api/blobs/{digest}", "uploading a blob"),
    ):
        any_key.add_api_route(path, reject(what), methods=[method], include_in_schema=False)

    @any_key.get("/api/blobs/{digest}", include_in_schema=False)  # requested by HEAD
    async def blob(digest: str) -> Response:
        raise NotFound("there are no blobs here")
