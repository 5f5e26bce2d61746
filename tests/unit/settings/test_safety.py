"""The rules of [[safety]]: what is wrong names the rule and the key; no key is without effect."""

from __future__ import annotations

import tomllib

import pytest

from penstock.errors import InvalidSetting
from penstock.settings.safety import parse_safety


@pytest.mark.parametrize(
    ("entry", "param", "says"),
    [
        ("terms = ['x']", "safety", "safety[0]: safety lacks name"),
        ("name = 'a'", "safety", "terms and patterns, or max_chars, or a hook"),
        ("name = 'a b'\nterms = ['x']", "name", "safety[0] (a b)"),
        ("name = 'a'\nterms = 'x'", "terms", "safety[0] (a): terms must be a list, got a text"),
        ("name = 'a'\nterm = ['x']", "term", "known: name, terms"),
        ("name = 'a'\nterms = ['x']\non = 'outputs'", "on", "'outputs'"),
        ("name = 'a'\nterms = ['x']\nmax_chars = 9", "safety", "or max_chars"),
        ("name = 'a'\nmax_chars = 0", "max_chars", "1"),
        ("name = 'a'\nterms = ['x']\ntimeout_s = 1", "hook", "go with a hook"),
        ("name = 'a'\nhook = 'm:f'\nhook_key_env = 'KEY'", "hook_key_env", "goes with a hook that is a URL"),
        ("name = 'a'\nhook = 'http://h/'\ntimeout_s = 0", "timeout_s", "0"),
        ("name = 'a'\nmax_chars = 9\nignore_case = true", "ignore_case", "goes with terms and patterns"),
        ("name = 'a'\nhook = 'http://h/'\nignore_case = false", "ignore_case", "goes with terms and patterns"),
        ("name = 'a'\npatterns = ['x']\nwhole_words = false", "whole_words", "goes with terms"),
        ("name = 'a'\nterms = ['x']\n[[safety]]\nname = 'a'\nterms = ['y']", "name", "two rules have this name"),
    ],
)
def test_rules_that_are_wrong(entry: str, param: str, says: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse_safety(tomllib.loads(f"[[safety]]\n{entry}")["safety"])
    assert caught.value.param == param
    assert says in caught.value.message


def test_rules_that_are_right() -> None:
    entries = (
        "name = 'a'\nterms = ['x']\nignore_case = false\nwhole_words = false\n[[safety]]\nname = 'b'\nmax_chars = 9"
    )
    assert [entry["name"] for entry in parse_safety(tomllib.loads(f"[[safety]]\n{entries}")["safety"])] == ["a", "b"]
