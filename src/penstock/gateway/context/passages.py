"""Passages of a document: windows of whole sentences, best first for a query."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise

from penstock.gateway.context.terms import OTHER, QueryTerms
from penstock.gateway.context.texts import sentences

SEARCHED = 1 << 18  # characters of a document
SATURATION = 1.0  # a term that a window has so often counts half of what it counts at most

Span = tuple[int, int]  # characters: begin and end


class PassageFinder:
    """For one query. Remembers what it has read: rooms are tried several times."""

    def __init__(self, query: str) -> None:
        self._terms = QueryTerms(query)
        self._read: dict[str, tuple[list[int], list[Counter[str]]]] = {}
        self._found: dict[tuple[str, int], list[Span]] = {}

    def spans(self, text: str, size: int) -> Sequence[Span]:
        """Passages of about `size` characters, best first, equally good ones in their order. Words that few sentences
        have count more."""
        if (text, size) not in self._found:
            self._found[text, size] = self._ranked(text, size)
        return self._found[text, size]

    def _ranked(self, text: str, size: int) -> list[Span]:
        begins, found = self._sentences(text)
        frequency = Counter(term for terms in found for term in terms)
        weights = {term: math.log(1 + len(found) / count) for term, count in frequency.items()}
        scored = []
        for first, end in windows([after - begin for begin, after in pairwise(begins)], size):
            held: Counter[str] = Counter()
            for terms in found[first:end]:
                held.update(terms)
            score = sum(weights[term] * count / (count + SATURATION) for term, count in held.items())
            scored.append((-score, (begins[first], begins[end])))
        return [span for _, span in sorted(scored)]

    def _sentences(self, text: str) -> tuple[list[int], list[Counter[str]]]:
        """Where each begins, and where the last one ends; how often each has which words of the query."""
        if text not in self._read:
            pieces = sentences(text[:SEARCHED])
            found = [Counter(term for term in self._terms.read(piece) if term is not OTHER) for piece in pieces]
            self._read[text] = [0, *accumulate(map(len, pieces))], found
        return self._read[text]


def windows(lengths: Sequence[int], size: int) -> list[tuple[int, int]]:
    """Sentences as windows (first, end) of about `size` characters, each of which begins in the middle of the one
    before; a longer sentence is a window by itself."""
    made, first = [], 0
    while first < len(lengths):
        end, total = first + 1, lengths[first]
        while end < len(lengths) and total + lengths[end] <= size:
            total += lengths[end]
            end += 1
        made.append((first, end))
        if end == len(lengths):
            break
        half, first = lengths[first], first + 1
        while first < end and half + lengths[first] <= size // 2:
            half += lengths[first]
            first += 1
    return made


def joined(text: str, spans: Sequence[Span]) -> str:
    """Spans of a text in their order, with a sign where something is left out between them."""
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return "\n[…]\n".join(text[begin:end].strip("\n") for begin, end in merged)
