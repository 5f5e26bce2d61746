"""Which passage of a document is kept where all of it has no room: the one with most of the query's words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from functools import cached_property
from itertools import accumulate

from penstock.gateway.context.ranking import query_terms, stem
from penstock.gateway.context.texts import sentences, words

SEARCHED = 1 << 18  # characters of a document


class PassageFinder:
    """For one query. Remembers what it has read: rooms are tried several times."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._read: dict[str, tuple[list[int], list[frozenset[str]]]] = {}

    @cached_property
    def _wanted(self) -> frozenset[str]:
        return frozenset(query_terms(self._query))

    def start(self, text: str, size: int) -> int:
        """Where a passage of about `size` characters begins: at a sentence, the first one of those that are equally
        good. Words that few sentences have count more. 0 if no word of the query occurs."""
        begins, found = self._sentences(text)
        frequency = Counter(term for terms in found for term in terms)
        weights = {term: math.log(1 + len(found) / count) for term, count in frequency.items()}
        best, best_score = 0, 0.0
        held: Counter[str] = Counter()  # in the passage that begins at `first`
        end, score = 0, 0.0
        for first in range(len(found)):
            while end < len(found) and (end == first or begins[end + 1] - begins[first] <= size):
                for term in found[end]:
                    score += 0.0 if held[term] else weights[term]
                    held[term] += 1
                end += 1
            if score > best_score + 1e-9:
                best, best_score = begins[first], score
            if end == len(found):
                break  # later ones have less
            for term in found[first]:
                held[term] -= 1
                score -= 0.0 if held[term] else weights[term]
        return best

    def _sentences(self, text: str) -> tuple[list[int], list[frozenset[str]]]:
        """Where each begins, and where the last one ends; the words of the query that each has."""
        if text not in self._read:
            pieces, wanted = sentences(text[:SEARCHED]), self._wanted
            self._read[text] = [0, *accumulate(map(len, pieces))], [_terms(piece, wanted) for piece in pieces]
        return self._read[text]


def _terms(text: str, wanted: Collection[str]) -> frozenset[str]:
    return frozenset(term for word in words(text) if (term := stem(word)) in wanted)
