"""Documents in the order of their usefulness, by the ranking that a request chooses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from penstock.deployment.local_model import LocalModel
from penstock.errors import InvalidRequest
from penstock.flow import Request
from penstock.flow.context import Document
from penstock.gateway.context import embeddings, ranking, reranker
from penstock.gateway.context.helper_models import HelperModels, owned_request
from penstock.gateway.context.ranking import ScoredDocuments
from penstock.gateway.context.texts import message_text
from penstock.gateway.router import RETRYABLE
from penstock.settings.context import MODEL_RANKINGS, ContextSettings, Ranking

MAX_JUDGED = 64  # documents that a model ranks; of more, the best by BM25
MODEL_FIELD = "context.rank_model"


async def rank_documents(
    request: Request, settings: ContextSettings, helpers: HelperModels
) -> tuple[Ranking, ScoredDocuments, str | None]:
    """The ranking that was used, and the documents: pinned ones first, as they came; then the others, best first.
    Where a model fails that was to rank them, BM25 does, and the last value is a warning."""
    pinned, others = split_pinned(request.documents)
    rank = settings.rank or ranking.default_ranking(others)
    query = last_user_text(request)
    if rank == "score":
        ranking.given_scores(request.documents)  # names the document by its place among all
    scored = await asyncio.to_thread(ranking.rank_without_model, rank, query, others)
    if not others or rank not in MODEL_RANKINGS:
        return rank, [*pinned, *scored], None
    best = [one for one, _ in scored[:MAX_JUDGED]]
    rest: ScoredDocuments = [(one, None) for one, _ in scored[MAX_JUDGED:]]
    score = _embedding_scores if rank == "embedding" else _reranker_scores
    try:
        scores = await score(request, settings.rank_model, query, best, helpers)
    except RETRYABLE as error:
        why = f"documents are ranked by bm25: ranking by {rank} failed ({error.code})"
        return "bm25", [*pinned, *scored], why
    return rank, [*pinned, *ranking.ordered(best, scores), *rest], None


async def _embedding_scores(
    request: Request, name: str | None, query: str, documents: Sequence[Document], helpers: HelperModels
) -> list[float]:
    model = helpers.find(name, MODEL_FIELD)
    made = embeddings.embedding_requests(request, helpers.request_id("embedding"), query, documents, model)
    ticket = await helpers.ask("embedding", model, made, MODEL_FIELD)
    return embeddings.similarities([one.embedding() for one in ticket.active_requests])


async def _reranker_scores(
    request: Request, name: str | None, query: str, documents: Sequence[Document], helpers: HelperModels
) -> list[float]:
    model = helpers.find(name, MODEL_FIELD)
    if not isinstance(model, LocalModel) or model.chat_format is None:
        raise InvalidRequest(
            f"{MODEL_FIELD}: {model.card.name} cannot rank documents: that needs a chat model that runs here",
            param=MODEL_FIELD,
        )
    judged = replace(owned_request(request, helpers.request_id("reranker")), salt=request.salt)
    texts = [f"{one.title}\n{one.text}" if one.title else one.text for one in documents]
    made = await asyncio.to_thread(
        lambda: reranker.judge_requests(model, judged, reranker.cut_query(model, query), texts)
    )
    ticket = await helpers.ask("reranker", model, made, MODEL_FIELD)
    vocabulary = (ticket.model or model).vocabulary
    return [round(reranker.relevance(one, vocabulary), 6) for one in ticket.active_requests]


def split_pinned(documents: Sequence[Document]) -> tuple[ScoredDocuments, list[Document]]:
    """Pinned ones, which are not ranked, and the others."""
    return [(one, None) for one in documents if one.pinned], [one for one in documents if not one.pinned]


def last_user_text(request: Request) -> str:
    """What documents are to be useful for: the user's last message."""
    texts = [message_text(one) for one in request.messages or () if one.get("role") == "user"]
    return texts[-1] if texts else ""
