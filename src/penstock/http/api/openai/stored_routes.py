"""The routes of chat completions that were kept. They are their tenant's, as responses are."""

from __future__ import annotations

import asyncio
from functools import partial

from fastapi import FastAPI, Request, Response

from penstock.http.api.openai import chat, stored_completions
from penstock.http.api.response_store import Kept, ResponseStore
from penstock.http.json_response import json_response
from penstock.http.middleware.tenants import tenant_of
from penstock.http.openapi.routes import documented
from penstock.http.parse.body import read
from penstock.http.parse.query import Parameter, read_query

MISSING = "No such completion."
_METADATA = "metadata["  # as clients write what they look for: metadata[name]=value

PAGE = (
    Parameter(name="after", about="The id of the entry behind which to begin."),
    Parameter(name="limit", about="Most entries of a page.", type="integer", bounds=(1, 100), default=20),
    Parameter(name="order", about="Oldest or newest first.", choices=("asc", "desc"), default="asc"),
)
LIST = (Parameter(name="model", about="Only those of this model."), *PAGE)


def add(app: FastAPI, store: ResponseStore) -> None:
    @app.get(
        "/v1/chat/completions",
        **documented(None, stored_completions.StoredList, missing=None, choosy=True, parameters=LIST),
    )
    async def list_completions(request: Request) -> Response:
        """Those that were kept. `metadata[name]=value` finds those that have it."""
        wanted = {
            name.removeprefix(_METADATA).removesuffix("]"): value
            for name, value in request.query_params.items()
            if name.startswith(_METADATA) and name.endswith("]")
        }
        query = read_query(request, LIST, ignore=_METADATA)
        bodies = [kept.body for kept in store.all(tenant_of(request.scope))]
        return json_response(
            await asyncio.to_thread(partial(stored_completions.completion_page, bodies, metadata=wanted, **query))
        )

    @app.get("/v1/chat/completions/{completion_id}", **documented(None, chat.RESPONSE, missing=MISSING, choosy=True))
    async def retrieve_completion(request: Request, completion_id: str) -> Response:
        """One that was kept, as it was sent."""
        read_query(request, ())
        return json_response(_find(request, completion_id).body)

    @app.get(
        "/v1/chat/completions/{completion_id}/messages",
        **documented(None, stored_completions.StoredList, missing=MISSING, choosy=True, parameters=PAGE),
    )
    async def list_messages(request: Request, completion_id: str) -> Response:
        """The messages that it answered."""
        query = read_query(request, PAGE)
        said = _find(request, completion_id).said
        return json_response(await asyncio.to_thread(partial(stored_completions.message_page, said, **query)))

    @app.post(
        "/v1/chat/completions/{completion_id}",
        **documented(stored_completions.StoredUpdate, chat.RESPONSE, missing=MISSING),
    )
    async def update_completion(request: Request, completion_id: str) -> Response:
        """Change its metadata."""
        body, kept = await read(stored_completions.StoredUpdate, request), _find(request, completion_id)
        changed = stored_completions.with_metadata(kept.body, body.metadata)
        tenant = tenant_of(request.scope)
        store.drop(tenant, completion_id)
        store.keep(tenant, completion_id, Kept(changed, kept.said))
        return json_response(changed)

    @app.delete(
        "/v1/chat/completions/{completion_id}", **documented(None, stored_completions.StoredDeleted, missing=MISSING)
    )
    async def delete_completion(request: Request, completion_id: str) -> Response:
        """Keep it no longer."""
        _find(request, completion_id)
        store.drop(tenant_of(request.scope), completion_id)
        return json_response(stored_completions.deleted(completion_id))

    def _find(request: Request, name: str) -> Kept:
        return store.find(tenant_of(request.scope), name, param="completion_id")
