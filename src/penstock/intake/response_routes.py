"""The routes of OpenAI's Responses API. What is kept is its tenant's: every route finds it through the same store."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from functools import partial
from typing import TypeVar, get_args

from fastapi import FastAPI, Request, Response

from penstock.errors import InvalidRequest
from penstock.intake.body import LONG_BODY, read
from penstock.intake.described import documented
from penstock.intake.desk import Desk
from penstock.intake.events import framed
from penstock.intake.openai.responses import items, listing, neutral
from penstock.intake.openai.responses import writer as responses
from penstock.intake.openai.responses.schemas import InputTokensRequest, ResponseRequest
from penstock.intake.openai.responses.store import Kept, ResponseStore
from penstock.intake.openai.responses.transcript import replayed
from penstock.intake.problems import called
from penstock.intake.query import Parameter, read_query
from penstock.intake.respond import EventStream, Whole
from penstock.intake.tenants import tenant_of
from penstock.intake.turns import Turns
from penstock.intake.visit import Visit

Made = TypeVar("Made")

MISSING = "No such response."
_MAX_EVENT = 2**31 - 1

INCLUDE = Parameter(
    name="include",
    about="What else to send. All that a response was created with is there; nothing can be added later.",
    type="array",
    choices=get_args(neutral.Includable),
)
RETRIEVE = (
    Parameter(name="stream", about="Send the events that led to it.", type="boolean", default=False),
    Parameter(
        name="starting_after", about="Only those behind the one of this number.", type="integer", bounds=(0, _MAX_EVENT)
    ),
    INCLUDE,
    Parameter(name="include_obfuscation", about="Padding of events. Not supported.", choices=("false",)),
)
LIST = (
    Parameter(name="after", about="The id of the item behind which to begin."),
    Parameter(name="limit", about="Most items of a page.", type="integer", bounds=(1, 100), default=20),
    Parameter(name="order", about="Newest or oldest first.", choices=("asc", "desc"), default="desc"),
    INCLUDE,
)


def add(app: FastAPI, desk: Desk, store: ResponseStore) -> None:
    _add_creation(app, desk, store)
    _add_kept(app, store)


def _add_creation(app: FastAPI, desk: Desk, store: ResponseStore) -> None:
    missing = "No such model or response."

    @app.post(
        "/v1/responses",
        **documented(responses.REQUEST, responses.RESPONSE, events=responses.EVENTS, missing=missing),
    )
    async def create_response(request: Request) -> Response:
        """Answer a conversation, and keep it for the next request."""
        with Visit(request.scope, "response", desk.emit) as visit:
            body = await read(responses.REQUEST, request)
            visit.parsed(stream=bool(body.stream))
            desk.check_model(body.model)
            name = secrets.token_hex(16)  # not the one that the glass box shows: it opens the conversation
            earlier = _earlier(store, visit.tenant, body)
            said, listed = await _beside(request, earlier, lambda: _conversation(body, earlier, name))
            with called(items.NAMES):
                asked = items.to_request(body, said, request_id=visit.name, recommended=desk.files.sampling)
                visit.validated([asked])
                writer = responses.ResponseWriter(
                    body,
                    asked.params,
                    said,
                    request_id=name,
                    model=desk.files.name,
                    vocabulary=desk.tokenizer,
                    keep=None if body.store is False else partial(store.keep, visit.tenant),
                    items=listed,
                )
                ticket = await desk.submit([asked], visit.tenant)
            if body.stream:
                return EventStream(desk, ticket, writer)
            return Whole(desk, ticket, lambda flights: writer.whole([flight.completion() for flight in flights]))

    @app.post("/v1/responses/input_tokens", **documented(responses.COUNT, responses.COUNTED, missing=missing))
    async def count_input_tokens(request: Request) -> Response:
        """How many tokens the prompt of such a request has."""
        body = await read(responses.COUNT, request)
        desk.check_model(body.model)
        earlier = _earlier(store, tenant_of(request.scope), body)
        said = await _beside(
            request, earlier, lambda: items.conversation(body, earlier.messages() if earlier is not None else ())
        )
        with called(items.NAMES):
            tokens = await asyncio.to_thread(desk.pipeline.tokenize, items.to_count(body, said))
        return _json(responses.counted(tokens))


def _add_kept(app: FastAPI, store: ResponseStore) -> None:
    @app.get(
        "/v1/responses/{response_id}",
        **documented(
            None, responses.RESPONSE, streamed=responses.EVENTS, missing=MISSING, choosy=True, parameters=RETRIEVE
        ),
    )
    async def retrieve_response(request: Request, response_id: str) -> Response:
        """One that was kept, as it was sent, or the events of a stream that led to it."""
        query = read_query(request, RETRIEVE)
        kept = store.find(tenant_of(request.scope), response_id)
        if neutral.LOGPROBS in query["include"] and not responses.has_logprobs(kept.body):
            raise InvalidRequest(f"include: {neutral.LOGPROBS} must be asked for at creation", param="include")
        if not query["stream"]:
            if query["starting_after"] is not None:
                raise InvalidRequest("starting_after goes with stream=true only", param="starting_after")
            return _json(kept.body)
        first = 0 if query["starting_after"] is None else query["starting_after"] + 1
        events = await asyncio.to_thread(lambda: framed(replayed(kept.body, kept.pieces)[first:]))
        return Response(events, headers={"cache-control": "no-cache"}, media_type="text/event-stream; charset=utf-8")

    @app.get(
        "/v1/responses/{response_id}/input_items",
        **documented(None, responses.LISTED, missing=MISSING, choosy=True, parameters=LIST),
    )
    async def list_input_items(request: Request, response_id: str) -> Response:
        """The items that it answered, those of the responses before it included."""
        query = read_query(request, LIST)
        kept = store.find(tenant_of(request.scope), response_id)
        page = {name: query[name] for name in ("after", "limit", "order")}
        return _json(await asyncio.to_thread(partial(listing.page, kept.items, **page)))

    @app.post(
        "/v1/responses/{response_id}/cancel", **documented(None, responses.RESPONSE, missing=MISSING, choosy=True)
    )
    async def cancel_response(request: Request, response_id: str) -> Response:
        """For responses in the background, of which there are none: one that is kept is finished."""
        store.find(tenant_of(request.scope), response_id)
        raise InvalidRequest("Cannot cancel a synchronous response.", param="response_id")

    @app.delete("/v1/responses/{response_id}", **documented(None, responses.DELETED, missing=MISSING))
    async def delete_response(request: Request, response_id: str) -> Response:
        """Keep it no longer."""
        store.drop(tenant_of(request.scope), response_id)
        return _json(responses.deleted(response_id))


def _earlier(store: ResponseStore, tenant: str, body: InputTokensRequest) -> Kept | None:
    """What the request goes on from."""
    name = body.previous_response_id
    return None if name is None else store.find(tenant, name, param="previous_response_id")


def _conversation(body: ResponseRequest, earlier: Kept | None, name: str) -> tuple[Turns, bytes]:
    """As messages for the model, and as items for those who ask for them later."""
    said = items.conversation(body, earlier.messages() if earlier is not None else ())
    if body.store is False:
        return said, b"[]"
    before, answer = (earlier.items, earlier.body) if earlier is not None else (None, None)
    return said, listing.input_items(body.input, f"item_{name}", before, answer)


async def _beside(request: Request, earlier: Kept | None, make: Callable[[], Made]) -> Made:
    """What `make` gives: made in a thread, where a long conversation would hold up everybody else's tokens."""
    length = request.headers.get("content-length", "")
    long = not length.isdecimal() or int(length) > LONG_BODY or (earlier is not None and earlier.size > LONG_BODY)
    return await asyncio.to_thread(make) if long else make()


def _json(data: bytes) -> Response:
    return Response(data, media_type="application/json")
