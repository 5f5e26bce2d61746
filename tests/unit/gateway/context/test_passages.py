from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.context import Document
from penstock.gateway.context.documents import RankedDocument, choose_documents
from penstock.gateway.context.passages import SEARCHED, PassageFinder, joined, windows

FILLER = "Rivers run to the sea. " * 20
TEXT = f"{FILLER}Pumps are stopped with the red button. Ask before you press it. {FILLER}The end."


def count(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def passage(query: str, size: int, text: str = TEXT) -> str:
    begin, end = PassageFinder(query).spans(text, size)[0]
    return text[begin:end]


def test_the_first_has_the_words_of_the_query() -> None:
    assert "Pumps are stopped" in passage("How do I stop a pump?", 40)
    assert "Pumps are stopped" in passage("Which button stops pumps?", 200)


def test_words_in_every_sentence_count_less_than_rare_ones() -> None:
    assert "red button" in passage("rivers, the sea, and the button", 60)


def test_without_any_of_its_words_they_are_in_their_order() -> None:
    spans = PassageFinder("What about whales?").spans(TEXT, 50)
    assert spans[0][0] == 0
    assert spans == sorted(spans)
    assert PassageFinder("").spans(TEXT, 50)[0][0] == 0
    assert PassageFinder("pump").spans("", 50) == []


def test_a_document_is_cut_to_its_passages() -> None:
    text = f"{FILLER}The red button stops it. {FILLER}Buttons of pumps are red. {FILLER}"
    ranked = RankedDocument(Document(id="a", text=text), 1.0, count([text])[0] + 3)
    (placed,) = choose_documents([ranked], 95, count, 10_000, PassageFinder("red button"))
    assert placed.cut
    assert "The red button stops it." in placed.text
    assert placed.tokens <= 95


def test_only_so_much_of_a_document_is_read() -> None:
    spans = PassageFinder("pump").spans("Water. " * (SEARCHED // 7 + 10) + "A pump.", 100)
    assert max(end for _, end in spans) <= SEARCHED


def test_what_is_left_out_between_passages_shows() -> None:
    assert joined("One. Two. Three. ", [(10, 17), (0, 5)]) == "One. \n[…]\nThree. "
    assert joined("One. Two. Three. ", [(5, 17), (0, 10)]) == "One. Two. Three. "


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 100))
def test_windows_leave_nothing_out(lengths: list[int], size: int) -> None:
    made = windows(lengths, size)
    assert {place for first, end in made for place in range(first, end)} == set(range(len(lengths)))
    assert all(end == first + 1 or sum(lengths[first:end]) <= size for first, end in made)
    assert made == sorted(set(made))
