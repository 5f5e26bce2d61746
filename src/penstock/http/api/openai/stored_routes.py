"""The routes of stored chat completions. Each tenant sees its own."""

from __future__ import annotations

import asyncio
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from penstock.gateway.keys.identity import Scope
from penstock.http.api.openai import chat, stored_completions
from penstock.http.json_response import json_response
from penstock.http.middleware.tenants import tenant_of
from penstock.http.openapi.route_docs import route_docs
from penstock.http.parse.body import read_body
from penstock.http.parse.query import Parameter, read_query
from penstock.http.response_store import ResponseStore, StoredResponse
from penstock.http.routing import App

NOT_FOUND = "No such completion."
_METADATA = "metadata["  # the filter's syntax is metadata[name]=value

PAGE = (
    Parameter(name="after", description="The id of the entry behind which to begin."),
    Parameter(name="limit", description="Most entries of a page.", type="integer", bounds=(1, 100), default=20),
    Parameter(name="order", description="Oldest or newest first.", choices=("asc", "desc"), default="asc"),
)
LIST = (Parameter(name="model", description="Only those of this model."), *PAGE)


def add(app: App, store: ResponseStore) -> None:
    inference = app.requiring(Scope.INFERENCE)

    @inference.get(
        "/v1/chat/completions",
        **route_docs(None, stored_completions.StoredList, not_found=None, may_reject=True, parameters=LIST),
    )
    async def list_completions(request: Request) -> Response:
        """Those that were stored. `metadata[name]=value` finds those that have it."""
        filters = {
            name.removeprefix(_METADATA).removesuffix("]"): value
            for name, value in request.query_params.items()
            if name.startswith(_METADATA) and name.endswith("]")
        }
        query = read_query(request, LIST, ignore=_METADATA)
        bodies = await store.bodies(tenant_of(request.scope))
        return json_response(
            await asyncio.to_thread(partial(stored_completions.completion_page, bodies, metadata=filters, **query))
        )

    @inference.get(
        "/v1/chat/completions/{completion_id}", **route_docs(None, chat.RESPONSE, not_found=NOT_FOUND, may_reject=True)
    )
    async def retrieve_completion(request: Request, completion_id: str) -> Response:
        """One that was stored, as it was sent."""
        read_query(request, ())
        return json_response((await _find(request, completion_id)).body)

    @inference.get(
        "/v1/chat/completions/{completion_id}/messages",
        **route_docs(None, stored_completions.StoredList, not_found=NOT_FOUND, may_reject=True, parameters=PAGE),
    )
    async def list_messages(request: Request, completion_id: str) -> Response:
        """The messages that it answered."""
        query = read_query(request, PAGE)
        conversation = (await _find(request, completion_id)).conversation
        return json_response(await asyncio.to_thread(partial(stored_completions.message_page, conversation, **query)))

    @inference.post(
        "/v1/chat/completions/{completion_id}",
        **route_docs(stored_completions.StoredUpdate, chat.RESPONSE, not_found=NOT_FOUND),
    )
    async def update_completion(request: Request, completion_id: str) -> Response:
        """Change its metadata."""
        body, stored = await read_body(stored_completions.StoredUpdate, request), await _find(request, completion_id)
        changed = stored_completions.with_metadata(stored.body, body.metadata)
        await store.replace(tenant_of(request.scope), completion_id, StoredResponse(changed, stored.conversation))
        return json_response(changed)

    @inference.delete(
        "/v1/chat/completions/{completion_id}",
        **route_docs(None, stored_completions.StoredDeleted, not_found=NOT_FOUND),
    )
    async def delete_completion(request: Request, completion_id: str) -> Response:
        """Keep it no longer."""
        await store.delete(tenant_of(request.scope), completion_id, param="completion_id")
        return json_response(stored_completions.encode_deleted(completion_id))

    async def _find(request: Request, name: str) -> StoredResponse:
        return await store.get(tenant_of(request.scope), name, param="completion_id")
