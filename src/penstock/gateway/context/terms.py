"""The words that a query asks for, and where texts have them: without English endings (Snowball's stemmer), and
identifiers in their parts too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from penstock.gateway.context.texts import words

OTHER = ""  # stands for every word that the query does not ask for
QUERY_CHARACTERS = 1 << 16
SHARED_LETTERS = 2  # that a word has in common with its stem, but for a few such as "dying"
MAX_STEMMED = 5_000  # different words of the texts for one query; a stem takes some 50 µs
MAX_LETTERS = 40  # of a word that has a stem
PIECE = 1 << 16  # characters read by one call, which holds the interpreter
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")  # within maxLength


class QueryTerms:
    """Of one query, for one thread. Remembers the words that it has read."""

    def __init__(self, query: str) -> None:
        self._query = query[:QUERY_CHARACTERS]
        self._terms: dict[str, tuple[str, ...]] = {}

    @cached_property
    def wanted(self) -> frozenset[str]:
        return frozenset(self._stems.values())

    @cached_property
    def _stems(self) -> dict[str, str]:
        """By word of the query. Words that say nothing are left out, unless there are no others."""
        from bm25s.stopwords import STOPWORDS_EN_PLUS

        asked = [part for word in _identifier_words(self._query) for part in _parts(word) if len(part) > 1]
        telling = [word for word in asked if word not in STOPWORDS_EN_PLUS] or asked
        return {word: self._stem(word) for word in telling}

    def read(self, text: str) -> Iterator[str]:
        """For each word of a text, and for each part of an identifier, the term or OTHER."""
        beginnings, known = self._beginnings, self._terms
        for word in _identifier_words(text):
            if word[:SHARED_LETTERS] not in beginnings and "_" not in word:
                yield OTHER
            elif (found := known.get(word)) is not None:
                yield from found
            else:
                yield from self._learn(word)

    @cached_property
    def _beginnings(self) -> frozenset[str]:
        return frozenset(word[:SHARED_LETTERS] for pair in self._stems.items() for word in pair)

    def _learn(self, word: str) -> tuple[str, ...]:
        if len(self._terms) >= MAX_STEMMED:
            return tuple(part if part in self.wanted else OTHER for part in _parts(word))
        found = self._terms[word] = tuple(self._term(part) for part in _parts(word))
        return found

    def _term(self, word: str) -> str:
        stem = self._stem(word) if word[:SHARED_LETTERS] in self._beginnings else OTHER
        return stem if stem in self.wanted else OTHER

    def _stem(self, word: str) -> str:
        return str(self._stemmer.stemWord(word)) if word.isascii() and len(word) <= MAX_LETTERS else word

    @cached_property
    def _stemmer(self) -> Any:
        import snowballstemmer  # keeps the state of a word, so it is not shared between threads

        return snowballstemmer.stemmer("english")


def _identifier_words(text: str) -> Iterator[str]:
    """In lower case; `maxLength` is `max_length`."""
    for begin in range(0, len(text), PIECE):
        yield from words(_HUMP.sub("_", text[begin : begin + PIECE]))


def _parts(word: str) -> list[str]:
    """The word, and what it is made of if it is an identifier."""
    return [word, *(part for part in word.split("_") if part)] if "_" in word else [word]
