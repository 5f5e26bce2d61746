"""Documents by usefulness for a query: by the scores that came with them, by BM25, or as they came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import InvalidRequest
from penstock.flow.context import Document
from penstock.gateway.context.texts import words
from penstock.settings.context import Ranking

RANKED_CHARACTERS = 4 << 20  # of all documents together: BM25 reads the beginning of each
MIN_CHARACTERS = 1000  # of each, at least
TITLE_WEIGHT = 3  # a title counts as if it were there so often
ENDINGS = ("ings", "ing", "ies", "ed", "es", "er", "e", "s", "y")
MIN_STEM = 3  # letters

Scores = list[float]
ScoredDocuments = list[tuple[Document, float | None]]


def default_ranking(documents: Sequence[Document]) -> Ranking:
    return "score" if documents and all(document.score is not None for document in documents) else "bm25"


def rank_without_model(rank: Ranking, query: str, documents: Sequence[Document]) -> ScoredDocuments:
    """Best first. A ranking that asks a model begins with BM25."""
    if not documents or rank == "given":
        return [(one, None) for one in documents]
    return ordered(documents, given_scores(documents) if rank == "score" else bm25_scores(query, documents))


def ordered(documents: Sequence[Document], scores: Sequence[float]) -> ScoredDocuments:
    return [(documents[place], scores[place]) for place in order(scores)]


def given_scores(documents: Sequence[Document]) -> Scores:
    """Raises InvalidRequest for a document without one; pinned ones need none."""
    scores = []
    for place, document in enumerate(documents):
        if document.score is None and not document.pinned:
            field = f"documents[{place}].score"
            raise InvalidRequest(f"{field} is required where documents are ranked by score", param=field)
        scores.append(document.score or 0.0)
    return scores


def bm25_scores(query: str, documents: Sequence[Document]) -> Scores:
    """Zero for documents without a word of the query."""
    import bm25s  # 0.2 s

    share = max(RANKED_CHARACTERS // max(len(documents), 1), MIN_CHARACTERS)
    terms = [_terms(f"{f'{one.title} ' * TITLE_WEIGHT if one.title else ''}{one.text[:share]}") for one in documents]
    wanted = query_terms(query)
    found = [place for place, own in enumerate(terms) if own]
    scores = [0.0] * len(documents)
    if not found or not wanted:
        return scores
    index: Any = bm25s.BM25(method="lucene")
    index.index([terms[place] for place in found], show_progress=False)
    known = [word for word in wanted if word in index.vocab_dict]
    if known:
        for place, score in zip(found, index.get_scores(known), strict=True):
            scores[place] = round(float(score), 4)
    return scores


def query_terms(query: str) -> list[str]:
    """Its words without endings; words that say nothing are left out, unless there are no others."""
    from bm25s.stopwords import STOPWORDS_EN_PLUS

    asked = [word for word in words(query[:RANKED_CHARACTERS]) if len(word) > 1]
    return sorted({stem(word) for word in [one for one in asked if one not in STOPWORDS_EN_PLUS] or asked})


def _terms(text: str) -> list[str]:
    return [stem(word) for word in words(text)]


def stem(word: str) -> str:
    """Without the commonest English endings: "caches", "cached" and "caching" are one word."""
    if len(word) > MIN_STEM and word.isascii():
        for ending in ENDINGS:
            if word.endswith(ending) and len(word) - len(ending) >= MIN_STEM:
                return word[: -len(ending)]
    return word


def order(scores: Sequence[float]) -> list[int]:
    """Places, best first; equal ones as they came."""
    return sorted(range(len(scores)), key=lambda place: -scores[place])
