"""Documents that fit a number of tokens: most useful first, whole while they fit, then cut at sentence borders to the
passage that has most of the query's words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import msgspec

from penstock.flow.context import Document
from penstock.gateway.context.texts import sentences

SHARES = 5  # documents that a room holds at least, if so many come
UNCOUNTED = 1 << 40  # tokens of a document that is too long to be counted

CHARS_PER_TOKEN = 4  # of a passage, about

Count = Callable[[Sequence[str]], list[int]]
Begin = Callable[[str, int], int]  # where a passage of a text begins that is to have so many characters


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


def from_the_beginning(text: str, size: int) -> int:
    return 0


def choose_documents(
    ranked: Sequence[RankedDocument], room: int, count: Count, longest: int, begin: Begin = from_the_beginning
) -> list[PlacedDocument]:
    """Those that have room, best first. None takes more than a fifth of it while others could use that: a longer one
    is cut. The first that what is left does not hold whole is cut too, and later ones are placed only whole. Of a room
    whose fifth holds nothing, one may take all. `longest`: characters of a text that is counted."""
    for shares in dict.fromkeys((min(len(ranked), SHARES), 1)) if ranked else ():
        if placed := _choose(ranked, room, room // shares, count, longest, begin):
            return placed
    return []


def _choose(
    ranked: Sequence[RankedDocument], room: int, share: int, count: Count, longest: int, begin: Begin
) -> list[PlacedDocument]:
    """`share`: tokens that one takes at most, while others could use the rest."""
    placed: list[PlacedDocument] = []
    left, may_cut, capped = room, True, None
    for one in ranked:
        tokens = UNCOUNTED if one.tokens is None else one.tokens
        if tokens <= min(share, left):
            placed.append(PlacedDocument(one.document, one.document.text, tokens))
        elif may_cut and left > 0:
            passage = cut_document(one.document, min(share, left), count, longest, begin)
            may_cut = tokens > share and left > share
            if passage is None:
                continue
            capped = len(placed) if capped is None and tokens > share else capped
            placed.append(passage)
        else:
            continue
        left -= placed[-1].tokens
    if capped is not None and left > 0:
        placed[capped] = _extended(placed[capped], left, count, longest, begin)
    return placed


def _extended(placed: PlacedDocument, more: int, count: Count, longest: int, begin: Begin) -> PlacedDocument:
    """With more of its text, as far as there is room."""
    room = placed.tokens + more
    whole = placed.document.text
    if len(whole) <= longest and (tokens := count([block(placed.document, whole)])[0]) <= room:
        return PlacedDocument(placed.document, whole, tokens)
    return cut_document(placed.document, room, count, longest, begin) or placed


def cut_document(document: Document, room: int, count: Count, longest: int, begin: Begin) -> PlacedDocument | None:
    """Its sentences from `begin` on; None: not even one fits."""
    start = begin(document.text, room * CHARS_PER_TOKEN)
    text = cut_text(document.text[start:], room, lambda texts: count([block(document, one) for one in texts]), longest)
    return PlacedDocument(document, text, count([block(document, text)])[0]) if text else None


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
