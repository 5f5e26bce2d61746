from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.context import Document
from penstock.gateway.context.documents import cut_document
from penstock.gateway.context.passages import SEARCHED, PassageFinder
from penstock.gateway.context.texts import sentences

FILLER = "Rivers run to the sea. " * 20
TEXT = f"{FILLER}Pumps are stopped with the red button. Ask before you press it. {FILLER}The end."


def count(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def passage(query: str, size: int, text: str = TEXT) -> str:
    start = PassageFinder(query).start(text, size)
    return text[start : start + size]


def test_it_begins_where_the_words_of_the_query_are() -> None:
    assert passage("How do I stop a pump?", 40).startswith("Pumps are stopped")
    assert "Pumps are stopped" in passage("Which button stops pumps?", 200)


def test_words_in_every_sentence_count_less_than_rare_ones() -> None:
    assert "red button" in passage("rivers, the sea, and the button", 60)


def test_without_any_of_its_words_it_is_the_beginning() -> None:
    assert PassageFinder("What about whales?").start(TEXT, 50) == 0
    assert PassageFinder("").start(TEXT, 50) == 0
    assert PassageFinder("pump").start("", 50) == 0


def test_a_document_is_cut_to_it() -> None:
    finder = PassageFinder("red button")
    placed = cut_document(Document(id="a", text=TEXT), 14, count, 10_000, finder.start)
    assert placed is not None
    assert placed.cut
    assert placed.text.startswith("Pumps are stopped with the red button.")
    assert placed.tokens <= 14


def test_only_so_much_of_a_document_is_read() -> None:
    assert PassageFinder("pump").start("Water. " * (SEARCHED // 7 + 10) + "A pump.", 100) == 0


@given(st.lists(st.sampled_from(["A pump. ", "Water. ", "No stop here! ", "x\n"]), max_size=30), st.integers(1, 100))
def test_it_is_the_first_window_with_the_most_words(pieces: list[str], size: int) -> None:
    text = "".join(pieces)
    begins = [len("".join(sentences(text)[:place])) for place in range(len(sentences(text)))]
    start = PassageFinder("stop the pump").start(text, size)
    assert start == 0 or start in begins

    def terms(begin: int) -> int:
        """Of the whole sentences within the window, or of its first sentence."""
        kept = [one for one in begins if one == begin or (one > begin and _end(text, one) - begin <= size)]
        shown = "".join(text[one : _end(text, one)] for one in kept)
        return ("pump" in shown) + ("stop" in shown)

    if len({"pump" in text, "stop" in text}) == 1:  # otherwise weights decide
        assert terms(start) == max(map(terms, begins), default=terms(start)) or "pump" in text


def _end(text: str, begin: int) -> int:
    ends = [len("".join(sentences(text)[: place + 1])) for place in range(len(sentences(text)))]
    return next(end for end in ends if end > begin)
