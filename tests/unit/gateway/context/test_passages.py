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


@given(
    st.lists(st.sampled_from(["A pump. ", "Water. ", "Nothing to see here! ", "x\n"]), max_size=30), st.integers(1, 100)
)
def test_it_is_the_first_window_that_has_the_word(pieces: list[str], size: int) -> None:
    text = "".join(pieces)
    parts = sentences(text)

    def has_word(first: int) -> bool:
        """Of the whole sentences within the window, or of its first one."""
        ends = range(first + 1, len(parts) + 1)
        return any(
            "pump" in parts[end - 1] for end in ends if end == first + 1 or len("".join(parts[first:end])) <= size
        )

    wanted = next((len("".join(parts[:first])) for first in range(len(parts)) if has_word(first)), 0)
    assert PassageFinder("the pump").start(text, size) == wanted
