"""The engine's grammars: compiled beside the loop, kept for the next sequence, dropped in order of use."""

import pytest

from penstock.errors import PenstockError
from penstock.flow import Constraint
from penstock.grammar.compiler import Compiler
from penstock.grammar.grammar_cache import GrammarCache


def settled(grammars: GrammarCache, count: int) -> dict[Constraint, PenstockError | None]:
    found: dict[Constraint, PenstockError | None] = {}
    while len(found) < count:
        found |= dict(grammars.take_finished(wait_s=30.0))
    return found


def test_prepared_in_the_background(compiler: Compiler) -> None:
    grammars = GrammarCache(compiler)
    good, bad = Constraint.choice(["a"]), Constraint.regex("(")
    for constraint in (good, bad, good):
        assert not grammars.has(constraint)
        grammars.prepare(constraint)
    outcomes = settled(grammars, 2)
    assert outcomes[good] is None
    assert "unclosed group" in str(outcomes[bad])
    assert (grammars.has(good), grammars.has(bad)) == (True, False)
    assert grammars.take_finished(wait_s=30.0) == []  # nothing is under way: nothing is waited for


def test_every_sequence_has_a_matcher_of_its_own(compiler: Compiler) -> None:
    grammars = GrammarCache(compiler)
    constraint = Constraint.regex("[ab]{3}")
    one, other = grammars.matcher(constraint), grammars.matcher(constraint)
    before = other.compute_bitmask()
    letter = next(token for token in range(320) if before[token // 8] >> token % 8 & 1)
    assert one.consume_token(letter)
    assert one.consume_token(letter)
    assert other.compute_bitmask() == before == grammars.matcher(constraint).compute_bitmask()


def test_those_used_last_are_kept(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = GrammarCache(compiler, capacity=2)
    first, second, third = (Constraint.choice([text]) for text in "abc")
    grammars.matcher(first)
    grammars.matcher(second)
    grammars.matcher(first)
    grammars.matcher(third)
    assert [grammars.has(one) for one in (first, second, third)] == [True, False, True]
    assert grammars.matcher(second) is not None  # compiled anew


def test_whatever_goes_wrong_is_told(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(constraint: Constraint) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(compiler, "compile", fail)
    grammars = GrammarCache(compiler)
    grammars.prepare(Constraint.json_object())
    (error,) = settled(grammars, 1).values()
    assert "by zero" in str(error)
