import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.stream.stops import StopMatcher

letters = st.text("ab", max_size=12)
stops = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


def expected(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Reading the whole text as it grows: the stop that is complete first, the earliest start of those, the longest."""
    for end in range(len(text) + 1):
        found = [(text[:end].find(stop), stop) for stop in stops if stop in text[:end]]
        if found:
            place, stop = min(found, key=lambda item: (item[0], -len(item[1])))
            return text[:place], stop
    return text, None


@given(st.lists(st.text("ab", max_size=1), max_size=24), stops)
def test_one_character_at_a_time(pieces: list[str], stops: list[str]) -> None:
    matcher, shown = StopMatcher(stops), ""
    for piece in pieces:
        shown += matcher.push(piece)
        if matcher.matched:
            break
    if not matcher.matched:
        shown += matcher.flush()
    assert (shown, matcher.matched) == expected("".join(pieces), stops)


@given(st.lists(letters, max_size=8), stops)
def test_nothing_of_a_stop_string_is_ever_shown(pieces: list[str], stops: list[str]) -> None:
    matcher, shown = StopMatcher(stops), ""
    for piece in pieces:
        shown += matcher.push(piece)
        assert not any(stop in shown for stop in stops)
        if matcher.matched:
            assert "".join(pieces).startswith(shown + matcher.matched)
            return
    assert shown + matcher.flush() == "".join(pieces)


@pytest.mark.parametrize(("text", "held"), [("hello <", "<"), ("a</en", "</en"), ("a</end>x", ""), ("plain", "")])
def test_only_what_may_become_a_stop_is_held_back(text: str, held: str) -> None:
    matcher = StopMatcher(["</end>"])
    matcher.push(text)
    assert matcher.held == held
