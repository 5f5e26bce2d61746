"""The words of texts that a query asks for."""

from __future__ import annotations

import pytest

from penstock.gateway.context import terms
from penstock.gateway.context.terms import OTHER, QueryTerms


def found(query: str, text: str) -> list[str]:
    return [term for term in QueryTerms(query).read(text) if term is not OTHER]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("How do I cache it?", "caching"),
        ("stories", "a story"),
        ("When will it be decided?", "It decides."),
        ("dying batteries", "dying"),
        ("is uniqueItems supported", "`uniqueItems`"),
        ("unique values", "uniqueItems"),
        ("the body size", "`max_body`"),
        ("max_body", "`--max-body`: the body"),
        ("日本の首都", "首都は東京"),
        ("What is this?", "this"),  # nothing else is asked for
    ],
)
def test_words_are_found(query: str, text: str) -> None:
    assert found(query, text)


def test_other_words_count_as_words() -> None:
    assert [*QueryTerms("pump").read("The pump_house runs.")] == [OTHER, OTHER, "pump", OTHER, OTHER]
    assert found("What is the pump?", "What is the river?") == []


def test_so_many_words_have_a_stem(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are found as they are."""
    monkeypatch.setattr(terms, "MAX_STEMMED", 2)
    assert found("caches", "camel cat caching cache cach") == ["cach"]
    assert found("caches", "caching cache cach") == ["cach"] * 3
