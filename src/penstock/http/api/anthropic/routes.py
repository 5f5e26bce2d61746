"""The routes of Anthropic's API. Their errors have its body (`error_body`)."""

from __future__ import annotations

import asyncio
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from penstock.gateway.keys.identity import Scope
from penstock.http.api.anthropic import messages
from penstock.http.api.anthropic.error_body import AnthropicErrorBody
from penstock.http.api.client_field_names import client_field_names
from penstock.http.api.generation_response import generation_response
from penstock.http.json_response import json_response
from penstock.http.middleware.tenants import identity_of
from penstock.http.openapi.route_docs import route_docs
from penstock.http.parse.body import read_body
from penstock.http.request_events import RequestEvents
from penstock.http.routing import App
from penstock.http.service import Service

_route_docs = partial(route_docs, error=AnthropicErrorBody)


def add(app: App, service: Service) -> None:
    inference = app.requiring(Scope.INFERENCE)

    @inference.post("/v1/messages", **_route_docs(messages.REQUEST, messages.RESPONSE, events=messages.EVENTS))
    async def create_message(request: Request) -> Response:
        """Answer a conversation, in Anthropic's way."""
        with RequestEvents(request.scope, "message", service.emit) as events:
            body = await read_body(messages.REQUEST, request)
            events.parsed(model=body.model, stream=bool(body.stream))
            model = service.models_of(events.identity).find(body.model)
            writer = messages.MessageWriter(request_id=events.name, model=model.card.name)
            with client_field_names(messages.client_names(body)):
                generation = messages.to_request(
                    body,
                    request_id=events.name,
                    recommended=model.sampling,
                    variables=model.template_variables,
                )
                events.validated([generation])
                ticket = await service.submit(model, [generation], events.identity, request.receive)
            return generation_response(service, ticket, writer, stream=body.stream)

    @inference.post("/v1/messages/count_tokens", **_route_docs(messages.COUNT, messages.COUNTED))
    async def count_tokens(request: Request) -> Response:
        """How many tokens a conversation has as a prompt."""
        body = await read_body(messages.COUNT, request)
        model = service.models_of(identity_of(request.scope)).find(body.model)
        with client_field_names(messages.client_names(body)):
            prompt = messages.to_count(body, variables=model.template_variables)
            counted = await asyncio.to_thread(model.count_prompt, prompt)
        return json_response(messages.encode_token_count(counted))
