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


def default_ranking(documents: Sequence[Document]) -> Ranking:
    return "score" if all(document.score is not None for document in documents) else "bm25"


def given_scores(documents: Sequence[Document]) -> Scores:
    scores = []
    for place, document in enumerate(documents):
        if document.score is None:
            field = f"documents[{place}].score"
            raise InvalidRequest(f"{field} is required where documents are ranked by score", param=field)
        scores.append(document.score)
    return scores


def bm25_scores(query: str, documents: Sequence[Document]) -> Scores:
    """Zero for documents without a word of the query."""
    import bm25s  # 0.2 s
    from bm25s.stopwords import STOPWORDS_EN

    share = max(RANKED_CHARACTERS // max(len(documents), 1), MIN_CHARACTERS)
    terms = [_terms(f"{f'{one.title} ' * TITLE_WEIGHT if one.title else ''}{one.text[:share]}") for one in documents]
    asked = [word for word in words(query[:RANKED_CHARACTERS]) if len(word) > 1]
    wanted = sorted({stem(word) for word in [one for one in asked if one not in STOPWORDS_EN] or asked})
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
