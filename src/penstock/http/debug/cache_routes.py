"""The KV cache: page map, prefix tree, and why a prompt is not cached further."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from penstock.deployment.adapter_model import AdapterModel
from penstock.flow import SamplingParams
from penstock.flow.record import Finding
from penstock.gateway.keys.identity import Scope
from penstock.http.debug import route_docs, sampling_lab
from penstock.http.debug.queries import ask_engine, find_replica, find_request, model_of_query, replica_of_query
from penstock.http.json_response import encode_response
from penstock.http.middleware.tenants import identity_of, tenant_of
from penstock.http.parse.body import read_body
from penstock.http.routing import App
from penstock.http.service import Service
from penstock.observe.observer import Observer
from penstock.observe.trace.prefix_explanation import explain_prefix
from penstock.observe.trace.views import Texts

JsonObject = dict[str, Any]


def add(app: App, service: Service, observer: Observer) -> None:
    observe = app.requiring(Scope.OBSERVE)
    journal = observer.journal

    @observe.get("/observe/cache", **route_docs.CACHE.docs)
    async def cache(request: Request) -> Response:
        """The page map: KV blocks by state and by sequence."""
        replica = replica_of_query(service, request, route_docs.CACHE.read_query(request))
        return encode_response(
            _page_map(observer, await ask_engine(replica, "page_map", tenant=tenant_of(request.scope)))
        )

    @observe.get("/observe/cache/tree", **route_docs.TREE.docs)
    async def tree(request: Request) -> Response:
        """The prefix tree: which prefixes are cached, and how often they were hit."""
        query = route_docs.TREE.read_query(request)
        name = query["request"]
        numbers = (
            [] if name is None else [sequence.number for sequence in find_request(observer, name, request).sequences]
        )
        tenant, keep_texts = tenant_of(request.scope), journal.keep_texts
        model, replica = model_of_query(service, request, query), replica_of_query(service, request, query)
        found = await ask_engine(
            replica, "prefix_tree", tenant=tenant, limit=query["limit"], numbers=numbers, with_tokens=keep_texts
        )
        return encode_response(await asyncio.to_thread(_with_texts, found, model.tokenizer))

    @observe.post("/observe/cache/explain", **route_docs.EXPLAIN.docs)
    async def explain(request: Request) -> Response:
        """How much of a prompt is cached, and why no more."""
        route_docs.EXPLAIN.read_query(request)
        body = await read_body(sampling_lab.ExplainRequest, request)
        model = service.models_of(identity_of(request.scope)).find_local(body.model)
        replica = find_replica(model, body.replica)
        tokens = await asyncio.to_thread(model.prompt_tokens, body.to_request("", SamplingParams()))
        found = await ask_engine(
            replica,
            "explain",
            tenant=tenant_of(request.scope),
            tokens=tokens,
            salt=body.cache_salt or "",
            adapter=model.adapter if isinstance(model, AdapterModel) else None,
        )
        explained = explain_prefix(
            Finding(*found["finding"]), len(tokens), found["cached"], found["block_size"], tokens,
            lambda part: model.tokenizer.decode(list(part), skip_special=False),
        )  # fmt: skip
        return encode_response({**(explained or {}), "t": journal.at(journal.clock())})


def _with_texts(tree: JsonObject, tokenizer: Texts) -> JsonObject:
    """Each node with the text of its first block, where texts are kept: the tenant's own."""
    for node in tree["nodes"]:
        tokens = node.pop("first_tokens")
        node["text"] = None if tokens is None else tokenizer.decode(tokens, skip_special=False)
    return tree


def _page_map(observer: Observer, found: JsonObject) -> JsonObject:
    journal = observer.journal
    now = journal.clock()
    evictions = found["evictions"]
    sequences = {}
    for number, one in found["sequences"].items():
        owner = journal.sequences.find(int(number))
        sequences[number] = {**one, "request": owner[0].number if owner else None}
    waste, capacity = found["waste_tokens"], found["held_blocks"] * found["block_size"]
    prompts, hits = found["prompt_tokens"], found["hit_tokens"]
    return {
        "t": journal.at(now),
        "block_size": found["block_size"],
        "prefix_caching": found["prefix_caching"],
        "groups": found["groups"],
        "sequences": sequences,
        "fragmentation": {
            "waste_tokens": waste,
            "held_tokens_capacity": capacity,
            "ratio": round(waste / capacity, 4) if capacity else 0.0,
        },
        "evictions": {
            "total": evictions["total"],
            "last_60_s": evictions["last_60_s"],
            "recent": [{**one, "t": journal.at(one.pop("at"))} for one in evictions["recent"]],
        },
        "hits": {"prompt_tokens": prompts, "hit_tokens": hits, "ratio": round(hits / prompts, 4) if prompts else 0.0},
        "ghosts": evictions["ghosts"],
    }
