"""Which documents a room holds, by a tokenizer of words."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.flow.context import Document
from penstock.gateway.context.documents import MAX_FAILURES, MIN_PASSAGE, RankedDocument, choose_documents
from penstock.gateway.context.passages import PassageFinder

TAGS = 3  # words of the tags around each document


def count(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def chosen(room: int, *texts: str, query: str = "", scores: Sequence[float | None] = ()) -> list[tuple[str, str]]:
    ranked = [
        RankedDocument(Document(id=str(place), text=text), scores[place] if scores else 1.0, len(text.split()) + TAGS)
        for place, text in enumerate(texts)
    ]
    placed = choose_documents(ranked, room, count, 1000, PassageFinder(query))
    assert sum(one.tokens for one in placed) <= max(room, 0)
    return [(one.document.id, one.text.strip()) for one in placed]


def test_all_have_room() -> None:
    assert chosen(100, "One.", "Two.", "Three.") == [("0", "One."), ("1", "Two."), ("2", "Three.")]


def test_each_has_a_passage_before_any_has_more() -> None:
    long = "One two three. " * 100
    texts = [text for _, text in chosen(5 * MIN_PASSAGE, *[long] * 10)]
    assert len(texts) >= 3
    assert len(texts[0].split()) > len(texts[-1].split())


def test_what_has_no_word_of_the_query_comes_last() -> None:
    long = "One two three. " * 100
    alone = dict(chosen(3 * MIN_PASSAGE, *[long] * 4, scores=(2.0, 0.0, 0.0, 0.0)))["0"]
    beside = dict(chosen(3 * MIN_PASSAGE, *[long] * 4))["0"]
    assert len(alone.split()) > len(beside.split())


def test_a_long_one_leaves_room_for_others() -> None:
    long = "One two three. " * 10
    assert [name for name, _ in chosen(45, long, "Two.", "Three.")] == ["0", "1", "2"]


def test_where_there_is_room_for_one_it_takes_all() -> None:
    assert chosen(9, "One two three four. Five six seven.", "Two two two two.", "Three.") == [
        ("0", "One two three four.")
    ]
    assert chosen(4, "One two three four.", "Two two two two.", "Three.") == [("2", "Three.")]


def test_a_room_for_nothing() -> None:
    assert chosen(3, "One.", "Two.") == []
    assert chosen(-5, "One.") == []
    assert chosen(10) == []


def test_only_so_many_are_tried_that_cannot_be_cut() -> None:
    """Each trial tokenizes a text."""
    counted: list[str] = []

    def counting(texts: Sequence[str]) -> list[int]:
        counted.extend(texts)
        return count(texts)

    endless = [RankedDocument(Document(id=str(place), text="word " * 500), 1.0, 503) for place in range(200)]
    short = RankedDocument(Document(id="short", text="Short."), 1.0, 4)
    placed = choose_documents([*endless, short], 100, counting, 10_000, PassageFinder(""))
    assert [one.document.id for one in placed] == ["short"]
    assert len(counted) < 10 * MAX_FAILURES
