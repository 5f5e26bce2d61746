"""POST /v1/rerank, as Cohere, Jina and vLLM have it: documents by their relevance to a query, as a chat model judges
it (`gateway.context.reranker`). Its usage is that of OpenAI's API."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from penstock import flow
from penstock.deployment.ticket import Ticket
from penstock.errors import InvalidRequest
from penstock.flow import SamplingParams, Vocabulary
from penstock.gateway.context import reranker
from penstock.gateway.keys.identity import Scope
from penstock.http.api.client_field_names import client_field_names
from penstock.http.api.fields import MAX_INT, MODEL, StrictModel
from penstock.http.api.ignored_fields import LABELS
from penstock.http.api.openai.response_bodies import Usage, usage
from penstock.http.api.response_bodies import Body
from penstock.http.openapi.route_docs import route_docs
from penstock.http.parse.body import read_body
from penstock.http.parse.unions import ByJsonType
from penstock.http.request_events import RequestEvents
from penstock.http.routing import App
from penstock.http.service import Service
from penstock.http.streaming import FullResponse
from penstock.stream.active_request import ActiveRequest

MAX_DOCUMENTS = 1000
PATHS = ("/v1/rerank", "/v2/rerank")  # of Cohere's clients; `/rerank` is the first without its prefix
CLIENT_NAMES = {"n": "documents", "messages": "documents", "enable_thinking": "model"}


class TextDocument(StrictModel):
    text: str = Field(min_length=1)
    title: str | None = Field(None, max_length=1000)


GivenText = Annotated[
    Annotated[str, Field(min_length=1)] | TextDocument, ByJsonType("a string or an object with a text")
]


class RerankRequest(StrictModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "smollm2", "query": "capital of France", "documents": ["Paris is it.", "A dog."]}]
        }
    )

    model: str | None = MODEL
    query: str = Field(min_length=1, description="What the documents are to be relevant for.")
    documents: Annotated[list[GivenText], Field(min_length=1, max_length=MAX_DOCUMENTS, fail_fast=True)] = Field(
        description=f"Up to {MAX_DOCUMENTS} texts, or objects with a `text`."
    )
    top_n: int | None = Field(None, ge=1, le=MAX_INT, description="How many to return, the best. Default: all.")
    return_documents: bool | None = Field(None, description="Send the texts, too. Default: false.")
    max_tokens_per_doc: int | None = Field(
        None, ge=1, le=MAX_INT, description="Judge a document by its first tokens. Default: what the context holds."
    )
    instruction: str | None = Field(
        None,
        min_length=1,
        max_length=10_000,
        description="Extension. What makes a document relevant, in a sentence. Default: that it answers the query.",
    )
    user: str | None = Field(None, description=LABELS["user"])


class RankedText(Body, kw_only=True, frozen=True):
    text: str
    title: str | UnsetType = UNSET


class RerankResult(Body, kw_only=True, frozen=True):
    index: int  # of the document in the request
    relevance_score: float  # 0 to 1
    document: RankedText | UnsetType = UNSET  # with `return_documents`


class RerankResponse(Body, kw_only=True, frozen=True):
    id: str
    model: str
    results: list[RerankResult]  # best first
    usage: Usage


REQUEST = RerankRequest
RESPONSE = RerankResponse


def add(app: App, service: Service) -> None:
    inference = app.requiring(Scope.INFERENCE)

    async def rerank(request: Request) -> Response:
        """Rank documents by their relevance to a query. The model that answers judges each by one token."""
        with RequestEvents(request.scope, "rerank", service.emit) as events:
            body = await read_body(REQUEST, request)
            events.parsed(model=body.model)
            model = service.models_of(events.identity).find_local(body.model)
            if model.chat_format is None:
                raise InvalidRequest("model has no chat template, which reranking needs", param="model")
            with client_field_names(CLIENT_NAMES):
                made = await asyncio.to_thread(
                    reranker.judge_requests,
                    model,
                    flow.Request(id=events.name, params=SamplingParams()),
                    body.query,
                    [_judged_text(one) for one in body.documents],
                    instruction=body.instruction or reranker.INSTRUCTION,
                    max_document=body.max_tokens_per_doc,
                )
                events.validated(made)
                ticket = await service.submit(model, made, events.identity, request.receive)
            return FullResponse(service, ticket, partial(_encode, body, events.name, ticket))

    for path in PATHS:
        inference.post(path, **route_docs(REQUEST, RESPONSE, uses_engine=True))(rerank)


def _encode(body: RerankRequest, name: str, ticket: Ticket, judged: Sequence[ActiveRequest]) -> bytes:
    assert ticket.model is not None
    return encode_ranking(body, judged, name=name, model=ticket.model.card.name, vocabulary=ticket.model.vocabulary)


def encode_ranking(
    body: RerankRequest, judged: Sequence[ActiveRequest], *, name: str, model: str, vocabulary: Vocabulary
) -> bytes:
    """`judged` is in the order of the documents."""
    scores = [reranker.relevance(one, vocabulary) for one in judged]
    best = sorted(range(len(scores)), key=lambda place: -scores[place])[: body.top_n]
    results = [
        RerankResult(
            index=place,
            relevance_score=scores[place],
            document=_ranked_text(body.documents[place]) if body.return_documents else UNSET,
        )
        for place in best
    ]
    counts = usage([one.completion() for one in judged])
    return msgspec.json.encode(RerankResponse(id=f"rerank-{name}", model=model, results=results, usage=counts))


def _judged_text(given: str | TextDocument) -> str:
    if isinstance(given, str):
        return given
    return f"{given.title}\n{given.text}" if given.title else given.text


def _ranked_text(given: str | TextDocument) -> RankedText:
    if isinstance(given, str):
        return RankedText(text=given)
    return RankedText(text=given.text, title=UNSET if given.title is None else given.title)
