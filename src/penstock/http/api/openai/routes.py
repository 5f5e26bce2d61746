"""The routes of OpenAI's API: chat completions, completions, embeddings. Stored chat completions are in
`stored_routes`, models in `http.api.model_routes`, the Responses API in `http.api.responses`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from penstock import flow
from penstock.gateway.keys.identity import Scope
from penstock.http.api.client_field_names import client_field_names
from penstock.http.api.generation_response import generation_response
from penstock.http.api.openai import chat, completions, embeddings
from penstock.http.api.openai.schemas import GenerationFields
from penstock.http.middleware.tenants import tenant_of
from penstock.http.openapi.route_docs import route_docs
from penstock.http.parse.body import read_body
from penstock.http.request_events import RequestEvents
from penstock.http.response_store import NewResponse, ResponseStore
from penstock.http.routing import App
from penstock.http.service import Service
from penstock.http.streaming import FullResponse, Writer
from penstock.stream.active_request import ActiveRequest

Body = TypeVar("Body", bound=GenerationFields)


def add_generation(app: App, service: Service, store: ResponseStore) -> None:
    """`store` holds the chat completions of requests with `store: true`."""

    inference = app.requiring(Scope.INFERENCE)

    async def generate(
        request: Request,
        kind: str,
        schema: type[Body],
        to_requests: Callable[..., list[flow.Request]],
        make_writer: Callable[..., Writer],
        stored: NewResponse | None = None,
    ) -> Response:
        with RequestEvents(request.scope, kind, service.emit) as events:
            body = await read_body(schema, request)
            events.parsed(model=body.model, stream=bool(body.stream))
            model = service.models_of(events.identity).find(body.model)
            writer = make_writer(
                body,
                request_id=events.name,
                model=model.card.name,
                created=int(time.time()),
                vocabulary=model.vocabulary,
            )
            if stored is not None and isinstance(body, chat.REQUEST) and body.store:
                await stored.check()
            with client_field_names(body.client_names()):
                requests = to_requests(body, request_id=events.name, recommended=model.sampling)
                events.validated(requests)
                ticket = await service.submit(model, requests, events.identity, request.receive)
            return generation_response(service, ticket, writer, stream=body.stream, stored=stored)

    @inference.post("/v1/chat/completions", **route_docs(chat.REQUEST, chat.RESPONSE, chunk=chat.CHUNK))
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation."""
        stored = NewResponse(store, tenant_of(request.scope))
        writer = partial(chat.ChatWriter, store=stored.note)
        return await generate(request, "chat", chat.REQUEST, chat.to_requests, writer, stored)

    @inference.post("/v1/completions", **route_docs(completions.REQUEST, completions.RESPONSE, chunk=completions.CHUNK))
    async def text_completions(request: Request) -> Response:
        """Continue one or several prompts."""
        api = completions
        return await generate(request, "completion", api.REQUEST, api.to_requests, api.CompletionWriter)


def add_embeddings(app: App, service: Service) -> None:
    inference = app.requiring(Scope.INFERENCE)

    @inference.post("/v1/embeddings", **route_docs(embeddings.REQUEST, embeddings.RESPONSE, uses_engine=True))
    async def embed(request: Request) -> Response:
        """Turn one or several texts into vectors of unit length."""

        def write(active_requests: Sequence[ActiveRequest]) -> bytes:
            vectors = [active.embedding() for active in active_requests]
            count = sum(len(active.submits[0].tokens) for active in active_requests)
            cost = active_requests[0].cost_usd
            return embeddings.encode_embeddings(
                body, vectors, model=model.card.name, prompt_tokens=count, cost_usd=cost
            )

        with RequestEvents(request.scope, "embedding", service.emit) as events:
            body = await read_body(embeddings.REQUEST, request)
            events.parsed(model=body.model)
            model = service.models_of(events.identity).find(body.model)
            requests = embeddings.to_requests(body, request_id=events.name)
            events.validated(requests)
            return FullResponse(service, await service.submit(model, requests, events.identity, request.receive), write)
