"""The length of the longest match, and the beginnings of matches."""

from __future__ import annotations

import random

import pytest
import re2

from penstock.gateway.safety.pattern import PatternError, analyze


@pytest.mark.parametrize(
    ("pattern", "longest"),
    [
        ("abc", 3),
        ("a|bcd|", 3),
        ("[]a-c]{2,5}?", 5),
        ("[^]x]", 1),
        ("[[:alpha:]\\]]{3}", 3),
        (r"\d\pL\p{Greek}\x41\x{263a}\123\0\.", 8),
        (r"\1234"[:5], 2),
        (r"(?P<name>ab){3}c?", 7),
        (r"(?i:a(?:b|cc)){2}", 6),
        (r"(?is)a.$", 2),
        (r"\bab\b|\Ax\z", 2),
        ("a{2}{3}"[:4], 2),
        ("a{,3}", 5),
        ("a{x", 3),
        ("日{4}", 4),
        ("a{0}b", 1),
    ],
)
def test_longest(pattern: str, longest: int) -> None:
    re2.compile(pattern)
    assert analyze(pattern).longest == longest


@pytest.mark.parametrize("pattern", ["a*", "a+b", "(a|b{2,})c", r"\w+?", "a(?i)b", r"\C", r"\Qa+\E"])
def test_what_is_not_bounded_or_not_supported(pattern: str) -> None:
    with pytest.raises(PatternError):
        analyze(pattern)


def random_pattern(draw: random.Random, depth: int = 3) -> str:
    kind = draw.randrange(8) if depth else draw.randrange(3)
    if kind < 3:
        return draw.choice(["a", "b", "c", "[ab]", "[^a]", ".", "\\w", "\\x61", "ö", "\\b", "(?i:B)"])
    if kind < 5:
        return "".join(random_pattern(draw, depth - 1) for _ in range(draw.randrange(1, 4)))
    if kind == 5:
        return "(?:" + "|".join(random_pattern(draw, depth - 1) for _ in range(draw.randrange(1, 4))) + ")"
    low = draw.randrange(3)
    return f"(?:{random_pattern(draw, depth - 1)}){{{low},{low + draw.randrange(3)}}}"


def test_beginnings_are_those_of_all_matches() -> None:
    draw = random.Random(5)
    options = re2.Options()
    options.log_errors = False
    found = 0
    for _ in range(600):
        pattern = random_pattern(draw)
        known = analyze(pattern)
        whole = re2.compile(pattern, options)
        beginnings = re2.compile(f"(?:{known.beginnings})\\z", options)
        for _ in range(8):
            text = "".join(draw.choices("abcABö ", k=8))
            for match in whole.finditer(text):
                start, end = match.span()
                assert end - start <= known.longest, (pattern, text)
                for place in range(start, end):
                    assert beginnings.search(text[:place]).start() <= start, (pattern, text, place)
                found += 1
    assert found > 1000
