"""Documents by usefulness for a query: by the scores that came with them, by BM25, or as they came."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain, islice
from typing import Any

from penstock.errors import InvalidRequest
from penstock.flow.context import Document
from penstock.gateway.context.passages import SEARCHED, windows
from penstock.gateway.context.terms import QueryTerms
from penstock.gateway.context.texts import sentences
from penstock.settings.context import Ranking

RANKED_CHARACTERS = 4 << 20  # of all documents together: BM25 reads the beginning of each
MIN_CHARACTERS = 1000  # of each, at least
MAX_CHARACTERS = 1 << 19  # of each, at most: the library counts all terms of a document in one call
TITLE_WEIGHT = 3  # a title counts as if it were there so often
DOCUMENT_WEIGHT = 0.5  # of the score of the whole document, beside that of its best passage
PASSAGE = 240  # characters
PASSAGE_CHARACTERS = 1 << 20  # of all documents whose passages are ranked
PASSAGE_TITLE_WEIGHT = 2
MAX_IN_PASSAGES = 64  # documents, the best ones as a whole

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
    """Of each document's best passage, and half as much of the whole document. Zero for documents without a word of
    the query."""
    terms = QueryTerms(query)
    share = min(max(RANKED_CHARACTERS // max(len(documents), 1), MIN_CHARACTERS), MAX_CHARACTERS)
    titles = [[*terms.read(one.title)] if one.title else [] for one in documents]
    whole = [
        [*title * TITLE_WEIGHT, *terms.read(one.text[:share])] for title, one in zip(titles, documents, strict=True)
    ]
    scores = [DOCUMENT_WEIGHT * score for score in _bm25(terms.wanted, whole)]
    best = [place for place in order(scores)[:MAX_IN_PASSAGES] if scores[place]]
    share = min(share, SEARCHED, max(PASSAGE_CHARACTERS // max(len(best), 1), MIN_CHARACTERS))
    passages = [_passage_terms(terms, titles[place], documents[place].text[:share]) for place in best]
    found = iter(_bm25(terms.wanted, [one for own in passages for one in own]))
    for place, own in zip(best, passages, strict=True):
        scores[place] += max(islice(found, len(own)))
    return [round(score, 4) for score in scores]


def _passage_terms(terms: QueryTerms, title: list[str], text: str) -> list[list[str]]:
    """Of each passage of a document, with those of its title."""
    pieces = sentences(text) or [""]
    read = [[*terms.read(piece)] for piece in pieces]
    return [
        [*title * PASSAGE_TITLE_WEIGHT, *chain.from_iterable(read[first:end])]
        for first, end in windows([len(piece) for piece in pieces], PASSAGE)
    ]


def _bm25(wanted: Collection[str], texts: Sequence[list[str]]) -> Scores:
    """Of each text, by the terms of its words."""
    import bm25s  # 0.2 s

    scores = [0.0] * len(texts)
    index: Any = bm25s.BM25(method="lucene")
    filled = [place for place, own in enumerate(texts) if own]
    if not filled:
        return scores
    index.index([texts[place] for place in filled], show_progress=False)
    if known := [term for term in sorted(wanted) if term in index.vocab_dict]:
        for place, score in zip(filled, index.get_scores(known), strict=True):
            scores[place] = float(score)
    return scores


def order(scores: Sequence[float]) -> list[int]:
    """Places, best first; equal ones as they came."""
    return sorted(range(len(scores)), key=lambda place: -scores[place])
