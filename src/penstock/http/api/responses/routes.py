"""The routes of OpenAI's Responses API. Each tenant sees its own stored responses."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from functools import partial
from typing import TypeVar, get_args

from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import InvalidRequest
from penstock.gateway.keys.identity import Scope
from penstock.http.api.client_field_names import client_field_names
from penstock.http.api.conversation import ConversationBuilder
from penstock.http.api.generation_response import generation_response
from penstock.http.api.responses import ignored_fields, input_items, requests
from penstock.http.api.responses import writer as responses
from penstock.http.api.responses.event_sequence import replay_events
from penstock.http.api.responses.schemas import InputTokensRequest, ResponseRequest
from penstock.http.json_response import json_response
from penstock.http.middleware.tenants import identity_of, tenant_of
from penstock.http.openapi.route_docs import route_docs
from penstock.http.parse.body import LONG_BODY, read_body
from penstock.http.parse.query import Parameter, read_query
from penstock.http.request_events import RequestEvents
from penstock.http.response_store import NewResponse, ResponseStore, StoredResponse
from penstock.http.routing import App
from penstock.http.service import Service
from penstock.http.sse import frame_events

Result = TypeVar("Result")

NOT_FOUND = "No such response."
_MAX_EVENT = 2**31 - 1

INCLUDE = Parameter(
    name="include",
    description="What else to send. All that a response was created with is there; nothing can be added later.",
    type="array",
    choices=get_args(ignored_fields.Includable),
)
RETRIEVE = (
    Parameter(name="stream", description="Send the events that led to it.", type="boolean", default=False),
    Parameter(
        name="starting_after",
        description="Only those behind the one of this number.",
        type="integer",
        bounds=(0, _MAX_EVENT),
    ),
    INCLUDE,
    Parameter(name="include_obfuscation", description="Padding of events. Not supported.", choices=("false",)),
)
LIST = (
    Parameter(name="after", description="The id of the item behind which to begin."),
    Parameter(name="limit", description="Most items of a page.", type="integer", bounds=(1, 100), default=20),
    Parameter(name="order", description="Newest or oldest first.", choices=("asc", "desc"), default="desc"),
    INCLUDE,
)


def add(app: App, service: Service, store: ResponseStore) -> None:
    _add_creation(app, service, store)
    _add_stored(app, store)


def _add_creation(app: App, service: Service, store: ResponseStore) -> None:
    inference = app.requiring(Scope.INFERENCE)
    not_found = "No such model or response."

    @inference.post(
        "/v1/responses",
        **route_docs(responses.REQUEST, responses.RESPONSE, events=responses.EVENTS, not_found=not_found),
    )
    async def create_response(request: Request) -> Response:
        """Answer a conversation, and keep it for the next request."""
        with RequestEvents(request.scope, "response", service.emit) as events:
            body = await read_body(responses.REQUEST, request)
            events.parsed(model=body.model, stream=bool(body.stream))
            model = service.models_of(events.identity).find(body.model)
            name = secrets.token_hex(16)  # not the id in the debug routes: this one gives access to the conversation
            stored = None if body.store is False else NewResponse(store, events.identity.tenant)
            if stored is not None:
                await stored.check()
            previous = await _previous(store, events.identity.tenant, body)
            turns, listed = await _in_thread_if_long(request, previous, lambda: _conversation(body, previous, name))
            with client_field_names(requests.CLIENT_NAMES):
                generation = requests.to_request(body, turns, request_id=events.name, recommended=model.sampling)
                events.validated([generation])
                writer = responses.ResponseWriter(
                    body,
                    generation.params,
                    turns,
                    request_id=name,
                    model=model.card.name,
                    vocabulary=model.vocabulary,
                    store=None if stored is None else stored.note,
                    items=listed,
                )
                ticket = await service.submit(model, [generation], events.identity, request.receive)
            return generation_response(service, ticket, writer, stream=body.stream, stored=stored)

    @inference.post("/v1/responses/input_tokens", **route_docs(responses.COUNT, responses.COUNTED, not_found=not_found))
    async def count_input_tokens(request: Request) -> Response:
        """How many tokens the prompt of such a request has."""
        body = await read_body(responses.COUNT, request)
        model = service.models_of(identity_of(request.scope)).find(body.model)
        previous = await _previous(store, tenant_of(request.scope), body)
        turns = await _in_thread_if_long(
            request, previous, lambda: requests.conversation(body, previous.messages() if previous is not None else ())
        )
        with client_field_names(requests.CLIENT_NAMES):
            counted = await asyncio.to_thread(model.count_prompt, requests.to_count(body, turns))
        return json_response(responses.encode_token_count(counted))


def _add_stored(app: App, store: ResponseStore) -> None:
    inference = app.requiring(Scope.INFERENCE)

    @inference.get(
        "/v1/responses/{response_id}",
        **route_docs(
            None,
            responses.RESPONSE,
            stored_events=responses.EVENTS,
            not_found=NOT_FOUND,
            may_reject=True,
            parameters=RETRIEVE,
        ),
    )
    async def retrieve_response(request: Request, response_id: str) -> Response:
        """One that was stored, as it was sent, or the events of a stream that led to it."""
        query = read_query(request, RETRIEVE)
        stored = await store.get(tenant_of(request.scope), response_id)
        if ignored_fields.LOGPROBS in query["include"] and not responses.has_logprobs(stored.body):
            raise InvalidRequest(f"include: {ignored_fields.LOGPROBS} must be requested at creation", param="include")
        if not query["stream"]:
            if query["starting_after"] is not None:
                raise InvalidRequest("starting_after goes with stream=true only", param="starting_after")
            return json_response(stored.body)
        first = 0 if query["starting_after"] is None else query["starting_after"] + 1
        events = await asyncio.to_thread(lambda: frame_events(replay_events(stored.body, stored.pieces)[first:]))
        return Response(events, headers={"cache-control": "no-cache"}, media_type="text/event-stream; charset=utf-8")

    @inference.get(
        "/v1/responses/{response_id}/input_items",
        **route_docs(None, responses.LISTED, not_found=NOT_FOUND, may_reject=True, parameters=LIST),
    )
    async def list_input_items(request: Request, response_id: str) -> Response:
        """The items that it answered, those of the responses before it included."""
        query = read_query(request, LIST)
        stored = await store.get(tenant_of(request.scope), response_id)
        page = {name: query[name] for name in ("after", "limit", "order")}
        return json_response(await asyncio.to_thread(partial(input_items.page, stored.items, **page)))

    @inference.post(
        "/v1/responses/{response_id}/cancel",
        **route_docs(None, responses.RESPONSE, not_found=NOT_FOUND, may_reject=True),
    )
    async def cancel_response(request: Request, response_id: str) -> Response:
        """For responses in the background, of which there are none: one that is stored is finished."""
        await store.get(tenant_of(request.scope), response_id)
        raise InvalidRequest("Cannot cancel a synchronous response.", param="response_id")

    @inference.delete("/v1/responses/{response_id}", **route_docs(None, responses.DELETED, not_found=NOT_FOUND))
    async def delete_response(request: Request, response_id: str) -> Response:
        """Keep it no longer."""
        await store.delete(tenant_of(request.scope), response_id)
        return json_response(responses.encode_deleted(response_id))


async def _previous(store: ResponseStore, tenant: str, body: InputTokensRequest) -> StoredResponse | None:
    """The stored response that the request continues."""
    name = body.previous_response_id
    return None if name is None else await store.get(tenant, name, param="previous_response_id")


def _conversation(
    body: ResponseRequest, previous: StoredResponse | None, name: str
) -> tuple[ConversationBuilder, bytes]:
    """As messages for the model, and as input items to store."""
    turns = requests.conversation(body, previous.messages() if previous is not None else ())
    if body.store is False:
        return turns, b"[]"
    before, answer = (previous.items, previous.body) if previous is not None else (None, None)
    return turns, input_items.input_items(body.input, f"item_{name}", before, answer)


async def _in_thread_if_long(request: Request, previous: StoredResponse | None, make: Callable[[], Result]) -> Result:
    """Calls `make`, in a thread for a long conversation: it would delay the tokens of running streams."""
    length = request.headers.get("content-length", "")
    is_long = not length.isdecimal() or int(length) > LONG_BODY or (previous is not None and previous.size > LONG_BODY)
    return await asyncio.to_thread(make) if is_long else make()
