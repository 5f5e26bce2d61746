"""Documents that fit a number of tokens: most useful first, whole where all fit, else cut at sentence borders to the
passages that have most of the query's words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import msgspec

from penstock.flow.context import Document
from penstock.gateway.context.passages import PassageFinder, Span, joined
from penstock.gateway.context.texts import sentences

PASSAGES = 11  # a room has this many and more, if so many documents come
MIN_PASSAGE = 80  # tokens, with its tags
BREADTH = 0.5  # of the room, for a passage of each document; the rest is for more of the best ones
SHARES = 8  # a document gets up to an eighth of the room before any gets more
MIN_GROWTH = 4  # tokens
MAX_FAILURES = 16  # documents of which no sentence fits; after so many none is cut any more
UNCOUNTED = 1 << 40  # tokens of a document that is too long to be counted

CHARS_PER_TOKEN = 3.0  # of a document that is too long to be counted, about

Count = Callable[[Sequence[str]], list[int]]


class RankedDocument(msgspec.Struct, frozen=True):
    document: Document
    score: float | None  # None: they are in the order in which they came
    tokens: int | None  # as it would be placed, whole; None: it is too long to be counted


class PlacedDocument(msgspec.Struct, frozen=True):
    document: Document
    text: str  # all of it or a passage
    tokens: int  # as it is placed

    @property
    def cut(self) -> bool:
        return len(self.text) < len(self.document.text)


def block(document: Document, text: str) -> str:
    """How a document stands in a message."""
    title = f' title="{_attribute(document.title)}"' if document.title else ""
    return f'<document id="{_attribute(document.id)}"{title}>\n{text.strip()}\n</document>'


def choose_documents(
    ranked: Sequence[RankedDocument], room: int, count: Count, longest: int, finder: PassageFinder
) -> list[PlacedDocument]:
    """Those that have room, best first. Each in turn gets a passage, until these take BREADTH of the room; then each
    gets more, up to an eighth of the room, then as much as there is room for; what is left is for the others. Documents
    that rank 0 come after those that have a score. `longest`: characters of a text that is counted."""
    if sum(_tokens(one) for one in ranked) <= room:
        return [PlacedDocument(one.document, one.document.text, _tokens(one)) for one in ranked]
    made = _Choice(room, count, longest, finder)
    for place, one in enumerate(ranked):
        if made.used < room * BREADTH and one.score != 0:
            made.place(place, one, made.passage)
    for limit in (room // SHARES, room):
        for place in sorted(made.placed):
            made.place(place, ranked[place], limit)
    for place, one in enumerate(ranked):
        made.place(place, one, room)
    return [made.placed[place] for place in sorted(made.placed)]


class _Choice:
    """Documents as they are placed, by rank."""

    def __init__(self, room: int, count: Count, longest: int, finder: PassageFinder) -> None:
        self.placed: dict[int, PlacedDocument] = {}
        self.used = 0  # tokens
        self._failures = 0
        self.passage = max(room // PASSAGES, MIN_PASSAGE)  # tokens, with its tags
        self._room, self._count, self._longest, self._finder = room, count, longest, finder

    def place(self, rank: int, one: RankedDocument, limit: int) -> None:
        """With as much of its text as `limit` and the room hold, unless it has more already."""
        before = self.placed.get(rank)
        had = before.tokens if before is not None else 0
        limit = min(limit, self._room - self.used + had)
        if (before is not None and not before.cut) or limit < had + MIN_GROWTH:
            return
        if _tokens(one) <= limit:
            placed: PlacedDocument | None = PlacedDocument(one.document, one.document.text, _tokens(one))
        else:
            placed = self._cut(one, limit) if self._failures < MAX_FAILURES else None
            self._failures += placed is None
        if placed is not None and placed.tokens > had:
            self.placed[rank] = placed
            self.used += placed.tokens - had

    def _cut(self, one: RankedDocument, room: int) -> PlacedDocument | None:
        """Its best passages that fit; None: not even a sentence does."""
        document, ratio = one.document, CHARS_PER_TOKEN
        frame = self._count([block(document, "")])[0]
        if one.tokens:
            ratio = len(document.text) / max(one.tokens - frame, 1)
        size = int((min(self.passage, room) - frame) * ratio)
        chosen: list[Span] = []
        for begin, end in self._finder.spans(document.text, size) if size > 0 else ():
            if frame + (len(joined(document.text, [*chosen, (begin, end)])) / ratio) > room and chosen:
                break
            chosen.append((begin, end))
        while len(chosen) > 1:
            text = joined(document.text, chosen)
            if (tokens := self._count([block(document, text)])[0]) <= room:
                return PlacedDocument(document, text, tokens)
            chosen.pop()
        if not chosen:
            return None
        only = document.text[slice(*chosen[0])]
        text = cut_text(only, room, lambda texts: self._count([block(document, one) for one in texts]), self._longest)
        return PlacedDocument(document, text, self._count([block(document, text)])[0]) if text else None


def _tokens(one: RankedDocument) -> int:
    return UNCOUNTED if one.tokens is None else one.tokens


def cut_text(text: str, room: int, count: Count, longest: int) -> str:
    """The first sentences of a text that have room as `count` counts them; "" if none has."""
    pieces = sentences(text[: min(longest, room * 64)])
    if not pieces:
        return ""
    frame = count([""])[0]  # what is counted beside the text
    sums = list(accumulate(tokens - frame for tokens in count(pieces)))
    number = sum(total <= room - frame for total in sums)
    while number:
        shown = "".join(pieces[:number])
        excess = count([shown])[0] - room
        if excess <= 0 and shown.strip():
            return shown
        keep = sums[number - 1] - max(excess, 1)
        number = min(number - 1, sum(total <= keep for total in sums[:number]))
    return ""


def _attribute(text: str | None) -> str:
    return " ".join((text or "").replace('"', "'").split())
