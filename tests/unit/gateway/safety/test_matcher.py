"""Matching text that arrives in pieces: nothing leaks, and nothing innocent is held back longer than a match."""

from __future__ import annotations

import random
import re
import time

import pytest
import re2

from penstock.errors import InvalidSetting
from penstock.gateway.safety.matcher import LEARN_WORK, MAX_WORK, Expired, Matcher, Pattern, Step
from penstock.gateway.safety.pattern import analyze
from penstock.gateway.safety.rules import Rules
from penstock.settings import SafetyEntry

CASES = 10_000
SOURCES = (
    "secret",
    r"(?i)\bbomb\b",
    r"sk-[A-Za-z0-9]{8,12}",
    r"\d{3}-\d{2}-\d{4}",
    r"a(?:b|cd){1,3}e?",
    r"(?i)über\s{1,4}geheim",
    r"x{2,5}y",
    r"(?:ab){2}(?:c|d[ef]{0,2})z",
    r"(?m)^top$",
    r"end\z",
    r"[^a-z ]{3}!",
    r"aab|aaab|b.{2}d",
    "日本.{0,3}語",
    r"\Bq\B",
)
ALPHABET = "abcdexyzsk-123 \n!öü日語q"
PLANTS = (
    "secret", "Bomb", "bombs", "sk-abcdefgh12", "123-45-6789", "acdabe", "ÜBER \n geheim", "xxxxy", "ababdefz", "top",
    "end", "A1B!", "aaab", "日本の語", "aqa",
)  # fmt: skip


def matcher(*sources: str) -> Matcher:
    return Matcher([Pattern(f"rule{place}", source, analyze(source)) for place, source in enumerate(sources)])


def random_text(draw: random.Random) -> str:
    parts = [
        draw.choice(PLANTS) if draw.random() < 0.3 else "".join(draw.choices(ALPHABET, k=draw.randrange(6)))
        for _ in range(draw.randrange(1, 7))
    ]
    return "".join(parts)


def pieces_of(text: str, draw: random.Random) -> list[str]:
    cuts = sorted(draw.sample(range(len(text) + 1), draw.randrange(min(len(text), 8) + 1)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def first_match(one: Matcher, text: str) -> int | None:
    """Where the first match of the whole text begins."""
    data = text.encode()
    found = [re2.compile(pattern.source).search(data) for pattern in one.patterns]
    starts = [len(data[: match.start()].decode()) for match in found if match is not None]
    return min(starts, default=None)


def run(one: Matcher, pieces: list[str]) -> tuple[str, str | None]:
    """What is shown, and the rule that matched."""
    state, shown, seen = one.beginning, "", ""
    for piece in pieces:
        step = one.step(state, piece)
        seen, shown, state = seen + piece, shown + step.shown, step.state
        if step.hit is not None:
            return shown, step.hit
        held = state.window[1:]
        assert shown + held == seen
        assert len(held) <= one.longest
    step = one.end(state)
    return shown + step.shown, step.hit


@pytest.mark.parametrize("seed", range(10))
def test_nothing_leaks_and_nothing_innocent_is_held_back(seed: int) -> None:
    draw = random.Random(seed)
    matchers = [matcher(*draw.sample(SOURCES, draw.randrange(1, 6))) for _ in range(20)]
    hits = 0
    for _ in range(CASES // 10):
        one, text = draw.choice(matchers), random_text(draw)
        shown, hit = run(one, pieces_of(text, draw))
        start = first_match(one, text)
        assert (hit is not None) == (start is not None), (text, hit)
        if start is None:
            assert shown == text
        else:
            hits += 1
            assert text.startswith(shown)
            assert start - one.longest <= len(shown) <= start, (text, shown, start)
    assert hits > CASES / 100


@pytest.mark.parametrize("plant", PLANTS)
def test_a_match_is_found_at_every_split(plant: str) -> None:
    one = matcher(*SOURCES)
    for before, behind in (("", ""), ("so ", " it"), ("\n", "\n"), ("é", "!")):
        text = before + plant + behind
        start = first_match(one, text)
        for first in range(len(text) + 1):
            for second in range(first, len(text) + 1):
                shown, hit = run(one, [text[:first], text[first:second], text[second:]])
                assert (hit is not None) == (start is not None)
                assert shown == text if start is None else text.startswith(shown) and len(shown) <= start


def test_only_what_may_become_a_match_is_held_back() -> None:
    one = matcher(r"(?i)\bsecret\b")
    assert one.step(one.beginning, "no secrecy").shown == "no secrecy"
    step = one.step(one.beginning, "a Sec")
    assert (step.shown, step.state.window) == ("a ", " Sec")
    assert one.step(step.state, "ond").shown == "Second"
    assert one.step(step.state, "ret.").hit == "rule0"
    assert one.step(step.state, "ret").hit is None  # it may become "secretary"
    assert one.end(one.step(step.state, "ret").state).hit == "rule0"


def test_steps_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.gateway.safety.matcher.MAX_STEPS", 4)
    one = matcher("abc")
    state = one.beginning
    for number in range(10):
        step = one.step(state, f"x{number}")
        assert step.shown == f"x{number}"
        assert state.steps[f"x{number}"] == (step.shown, step.state)
        assert len({*one._states.values(), state}) <= 6
        assert sum(len(known.steps) for known in {*one._states.values(), state}) <= 4
        state = step.state
    assert one.step(state, "abc").hit == "rule0"
    assert "abc" not in state.steps


def test_a_new_text_goes_along_the_steps_of_its_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a bed for the boss, 123 secondhand cars and a bombast of seclusion\n"
    one, other, searched = matcher(*SOURCES), matcher(*SOURCES), []
    state = one.beginning
    for char in text:
        state = one.step(state, char).state
    search = one._step

    def count(window: str, piece: str, *, ended: bool) -> Step:
        searched.append(piece)
        return search(window, piece, ended=ended)

    monkeypatch.setattr(one, "_step", count)
    state = one.beginning
    for word in re.findall(r"\s*\S+", text):
        step, expected = one.step(state, word), other._step(state.window, word, ended=False)
        assert (step.shown, step.state.window) == (expected.shown, expected.state.window)
        assert state.steps[word] == (step.shown, step.state)
        state = step.state
    assert searched == []
    one.step(state, "qbex")  # nothing is known behind a q: one character is learned, and RE2 sees what is left
    assert searched == ["q", "bex"]


def test_where_a_search_may_take_long_a_text_is_searched_once() -> None:
    one = matcher(r"[ab]{0,700}c\d[ab]{20}", "x")
    assert LEARN_WORK < one.program_size * one.longest <= MAX_WORK
    assert one.learn(one.beginning, "ab") is None
    assert not one.beginning.steps


def test_half_a_surrogate_pair_is_matched_as_something_else() -> None:
    one = matcher("secret")
    assert run(one, ["\ud83d", "sec", "\udc00"]) == ("\ud83dsec\udc00", None)
    assert one.find("\ud83d secret", 1e9, time.monotonic) == ("rule0", "secret")


def test_long_texts_are_searched_in_slices_and_end_at_the_deadline() -> None:
    one = matcher(r"needle\b", "^never")
    text = "never" + "hay ö" * 60_000
    assert one.find("x" + text + "needle", 1e9, time.monotonic) == ("rule0", "needle")
    assert one.find_all("x" + text + "needle never", 1e9, time.monotonic) == ["rule0"]
    across = "-" * ((1 << 16) - 3) + "needle"
    assert one.find(across, 1e9, time.monotonic) == ("rule0", "needle")
    with pytest.raises(Expired):
        one.find("x" + text, 0.0, time.monotonic)


def hostile(*patterns: str, **fields: object) -> None:
    Rules([SafetyEntry(name="hostile", patterns=patterns, **fields)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("patterns", "says"),
    [
        (("a+",), "any length"),
        (("ab*c",), "any length"),
        (("a{3,}",), "any length"),
        (("(?:x|y+)z",), "any length"),
        (("a?",), "empty text"),
        ((r"\b",), "empty text"),
        (("a{1001}",), "hostile"),
        (("(?:a{1,100}){1,100}",), "hostile"),
        ((".{600}.{600}",), "at most 1000"),
        (("(",), "hostile"),
        ((r"(a)\1",), "hostile"),
        ((r"x(?i)y",), "beginning"),
        ((r"\Ca",), "not supported"),
        (tuple(f"[a-z]{{0,200}}{number}[ab]{{20}}" for number in range(30)), "too long"),
        (tuple(f"term{number}" for number in range(5000)), "at most 4096"),
    ],
)
def test_rules_that_cannot_be_bounded_are_errors_that_name_them(patterns: tuple[str, ...], says: str) -> None:
    with pytest.raises(InvalidSetting) as error:
        hostile(*patterns)
    assert says in error.value.message
    assert "hostile" in error.value.message


def test_the_worst_that_rules_allow_is_matched_in_linear_time() -> None:
    """A blow-up of states, which would take a backtracking engine for ever."""
    one = matcher(*(f"(?:[a-z]{{0,60}}a){{0,2}}[ab]{{20}}{number}" for number in range(4)))
    text = "".join(random.Random(1).choices("ab", k=4000))
    assert one.find(text, 1e9, time.monotonic) is None
    assert run(one, [text[place : place + 20] for place in range(0, 400, 20)])[1] is None
