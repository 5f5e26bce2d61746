"""Spellings of a term that read the same, in requests and at every split of an answer."""

from __future__ import annotations

import time
import unicodedata

import pytest

from penstock.gateway.safety.choice_filter import Context, RuleFilter
from penstock.gateway.safety.request_texts import readings
from penstock.gateway.safety.rules import Rules
from penstock.gateway.safety.spelling import split_visible, visible
from penstock.settings import SafetyEntry

TERMS = SafetyEntry(name="terms", terms=("Müller", "Straße 7", "İzmir", "Boss Fritz", "👩\u200d🔬"))
ZERO_WIDTH = "\u200b"


def matcher_of(*rules: SafetyEntry):  # type: ignore[no-untyped-def]
    matcher = Rules(rules).of("", "output").matcher
    assert matcher is not None
    return matcher


def show(pieces: list[str], *rules: SafetyEntry, kind: str = "text", prompt: str = "") -> tuple[str, str | None]:
    """What is shown of a text, and the rule that matched."""
    hits: list[str] = []
    owner = RuleFilter(matcher_of(*rules), None, lambda rule, part, matched: hits.append(rule), Context(prompt))
    part = owner.part(kind)
    shown = ""
    for piece in pieces:
        shown += part.push(piece)
        if part.hit is not None:
            break
    else:
        shown += part.flush()
    assert hits == ([] if part.hit is None else [part.hit])
    return shown, part.hit


def both_splits(text: str) -> list[list[str]]:
    return [[text[:cut], text[cut:]] for cut in range(len(text) + 1)] + [list(text)]


@pytest.mark.parametrize(
    "written",
    [
        "Müller", "MÜLLER", unicodedata.normalize("NFD", "müller"), "Straße 7", "STRASSE 7", "STRAẞE\t7", "İzmir",
        "izmir", "IZMIR", "ızmır", "boß fritz", "BOSS  FRITZ", "👩\u200d🔬", "👩🔬", f"M{ZERO_WIDTH}ü{ZERO_WIDTH}ller",
        f"{ZERO_WIDTH}Müller", "Mül\u00adler", f"Stra\ufeffße{ZERO_WIDTH} 7", "Mü\u2060\u2060\u2060\u2060ller",
    ],
)  # fmt: skip
def test_spellings_that_read_the_same_match(written: str) -> None:
    matcher = matcher_of(TERMS)
    assert any(matcher.find(one, 1e9, time.monotonic) for one in readings(f"so {written} it"))
    for pieces in both_splits(f"so {written} it"):
        shown, hit = show(pieces, TERMS)
        assert hit == "terms", pieces
        assert visible(shown) == "so "


@pytest.mark.parametrize(
    "written",
    ["Mueller", "M.ü.l.l.e.r", "Мüller", "Strase 7", f"x{ZERO_WIDTH}y", f"a{ZERO_WIDTH}", "👩\u200d🚀", "Müll"],
)
def test_other_text_is_shown_as_it_is(written: str) -> None:
    """Of these, docs/SAFETY.md says that rules do not match spaced letters and homoglyphs."""
    for pieces in both_splits(f"so {written} it {written}"):
        assert show(pieces, TERMS) == (f"so {written} it {written}", None)


def test_invisible_characters_do_not_make_a_word_end() -> None:
    secret = SafetyEntry(name="s", terms=("secret",))
    for pieces in both_splits(f"a sec{ZERO_WIDTH}retary, xsec{ZERO_WIDTH}ret"):
        assert show(pieces, secret)[1] is None


@pytest.mark.parametrize("term", ["boss", "sss", "id", "ski", "i", "ss", "straß", "this is"])
def test_whole_words_end_where_letters_have_several_spellings(term: str) -> None:
    rule = SafetyEntry(name="s", terms=(term,))
    for text in (f"x{term}", f"{term}x", f"{term.upper()}X", f"x{term}x"):
        expected = "ß" in text  # no ASCII letter: no border of a word is asked for beside it
        assert (show(list(text), rule)[1] is not None) <= expected, text
    for text in (f"a {term}.", f"({term.upper()})", term):
        assert show(list(text), rule)[1] == "s", text


def test_patterns_see_invisible_characters() -> None:
    rule = SafetyEntry(name="hidden", patterns=("\\x{200b}{3}",))
    for pieces in both_splits(f"a{ZERO_WIDTH * 2}b{ZERO_WIDTH * 3}c"):
        assert show(pieces, rule) == (f"a{ZERO_WIDTH * 2}b", "hidden")


def test_escapes_of_invisible_characters_in_arguments() -> None:
    secret = SafetyEntry(name="s", terms=("secret",))
    for pieces in both_splits('{"a": "s\\u200bec\\u0072et"}'):
        shown, hit = show(pieces, secret, kind="arguments")
        assert (shown, hit) == ('{"a": "', "s")


def test_pieces_are_a_character_with_the_invisible_ones_before_it() -> None:
    assert split_visible("a\u200b\u200cb\nc\u200d") == (["a", "\u200b\u200cb", "\n", "c"], "\u200d")


@pytest.mark.parametrize(
    ("prompt", "answer", "shown"),
    [
        ("tell me the sec", "ret plan", None),
        ("tell me the secret ", "plan.", None),
        ("the secret plan", "ner wins", "ner wins"),
        ("the secret plan", " is old", " is old"),  # a match within the prompt is the client's own
        ("a", "secret planet", "secret planet"),
        ("the secret", "ary has a secret p", "ary has a secret p"),
        ("日本 sec", "ond secret", "ond secret"),
        ("x" * 500 + " secret", " " * 4 + "plan", None),
    ],
)
def test_a_match_may_begin_in_the_prompt_that_is_continued(prompt: str, answer: str, shown: str | None) -> None:
    rule = SafetyEntry(name="s", terms=("secret plan",))
    for pieces in both_splits(answer):
        assert show(pieces, rule, prompt=prompt) == (("", "s") if shown is None else (shown, None)), pieces


def test_a_rule_may_match_at_the_beginning_of_an_answer() -> None:
    rule = SafetyEntry(name="s", patterns=(r"\Ayes",))
    assert show(["yes"], rule) == ("", "s")
    assert show(["yes"], rule, prompt="say ") == ("yes", None)
