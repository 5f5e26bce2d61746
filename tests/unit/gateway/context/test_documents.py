"""Which documents a room holds, by a tokenizer of words."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.flow.context import Document
from penstock.gateway.context.documents import RankedDocument, choose_documents

TAGS = 3  # words of the tags around each document


def count(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def chosen(room: int, *texts: str) -> list[tuple[str, str]]:
    ranked = [
        RankedDocument(Document(id=str(place), text=text), 1.0, len(text.split()) + TAGS)
        for place, text in enumerate(texts)
    ]
    placed = choose_documents(ranked, room, count, 1000)
    assert sum(one.tokens for one in placed) <= max(room, 0)
    return [(one.document.id, one.text.strip()) for one in placed]


def test_all_have_room() -> None:
    assert chosen(100, "One.", "Two.", "Three.") == [("0", "One."), ("1", "Two."), ("2", "Three.")]


def test_none_takes_more_than_a_fifth_while_others_could_use_it() -> None:
    long = "One two three. " * 10
    assert [name for name, _ in chosen(45, long, "Two.", "Three.")] == ["0", "1", "2"]


def test_where_a_fifth_holds_nothing_one_takes_all() -> None:
    assert chosen(9, "One two three four. Five six seven.", "Two two two two.", "Three.") == [
        ("0", "One two three four.")
    ]
    assert chosen(4, "One two three four.", "Two two two two.", "Three.") == [("2", "Three.")]


def test_a_room_for_nothing() -> None:
    assert chosen(3, "One.", "Two.") == []
    assert chosen(-5, "One.") == []
    assert chosen(10) == []
