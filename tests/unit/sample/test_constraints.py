"""Masks of constrained rows: what is left of a row of logits, and when there is nothing left to draw from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import tiny_models
from penstock.flow import Admit, Constraint, FinishReason, SamplingParams
from penstock.grammar.compiler import Compiler
from penstock.grammar.grammar_cache import GrammarCache
from penstock.sample import constraints as module
from penstock.sample.constraints import Constraints, StepConstraints
from penstock.sample.masks import Bits
from penstock.tokenize.tokenizer import Tokenizer

END = tiny_models.END_TOKEN
PROMPT = [5, 6, 7]


def tokens_of(mask: Bits) -> list[int]:
    tokens: list[int] = np.unpackbits(mask, count=tiny_models.VOCAB, bitorder="little").nonzero()[0].tolist()
    return tokens


class Desk:
    def __init__(self, folder: Path) -> None:
        tiny_models.save_tokenizer(folder)
        self.tokenizer = Tokenizer.load(folder / "tokenizer.json")
        self.grammars = GrammarCache(Compiler(folder / "tokenizer.json", tiny_models.VOCAB, (END,)))
        self.constraints = Constraints(tiny_models.VOCAB, self.grammars)

    def id(self, letter: str) -> int:
        (token,) = self.tokenizer.encode(letter, add_special=False)
        return token

    def admit(self, slot: int, constraint: Constraint | None, output: str = "", **params: Any) -> None:
        tokens = PROMPT + self.tokenizer.encode(output, add_special=False)
        asked = SamplingParams(constraint=constraint, **params)
        ends = () if asked.ignore_eos else (END,)
        self.constraints.admit(Admit(slot, tokens, len(PROMPT), asked, 0, 0, (*ends, *asked.stop_tokens), []))

    def mask(self, *slots: int, outputs: int = 0) -> StepConstraints | None:
        return self.constraints.mask(slots, [len(PROMPT) + outputs] * len(slots), before=lambda: None)

    def allowed(self, slot: int, outputs: int = 0) -> set[str]:
        masked = self.mask(slot, outputs=outputs)
        assert masked is not None
        assert not masked.finishes
        left = tokens_of(masked.allowed[0])
        return {"END" if token == END else self.tokenizer.token_bytes(token).decode(errors="replace") for token in left}

    def finish(self, slot: int, outputs: int = 0) -> FinishReason:
        masked = self.mask(slot, outputs=outputs)
        assert masked is not None
        return masked.finishes[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vocabulary")


@pytest.fixture
def desk(folder: Path) -> Desk:
    return Desk(folder)


def test_only_the_rows_with_a_constraint_are_touched(desk: Desk) -> None:
    desk.admit(0, None)
    desk.admit(1, Constraint.choice(["x", "y"]))
    desk.admit(2, None)
    desk.admit(3, Constraint.choice(["z"]))
    desk.admit(4, Constraint.regex("[^z]"))
    assert desk.mask(0, 2) is None
    masked = desk.mask(3, 0, 1, 2, 4)
    assert masked is not None
    assert masked.rows == [0, 2, 4]
    assert masked.allowed_of(1) is None
    z, xy, rest = map(tokens_of, masked.allowed)
    assert z == [desk.id("z")]
    assert xy == sorted([desk.id("x"), desk.id("y")])
    assert not {desk.id("z"), END} & set(rest)
    assert len(rest) > tiny_models.VOCAB // 2


def test_the_matcher_sees_what_is_drawn(desk: Desk) -> None:
    desk.admit(0, Constraint.regex("ab?"))
    assert desk.allowed(0) == {"a"}
    masked = desk.mask(0)
    assert masked is not None
    assert masked.settle([desk.id("a")]) == masked.settle([desk.id("a")]) == {}  # once only
    assert desk.allowed(0, 1) == {"b", "END"}
    masked = desk.mask(0, outputs=1)
    assert masked is not None
    assert masked.settle([desk.id("b")]) == {0: FinishReason.COMPLETE}
    assert desk.finish(0, 2) is FinishReason.COMPLETE  # of a row that was planned ahead: nobody wants it


def test_a_preempted_sequence_goes_on_where_it_was(desk: Desk) -> None:
    desk.admit(0, Constraint.regex("xyz+"), output="xy")
    assert desk.allowed(0, 2) == {"z"}
    desk.admit(0, None)  # somebody else in the slot
    assert desk.mask(0) is None


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, {"x", "y", "END"}),
        ({"ignore_eos": True}, {"x", "y"}),
        ({"min_tokens": 2}, {"x", "y"}),
        ({"min_tokens": 1}, {"x", "y", "END"}),
        ({"banned": "y"}, {"x", "END"}),
        ({"banned": ["y", END]}, {"x"}),
        ({"stop": "y", "banned": "y"}, {"x", "END"}),
        ({"allowed": "yq"}, {"y"}),
        ({"stop": "y"}, {"x", "y", "END"}),
        ({"stop": "y", "min_tokens": 3}, {"x"}),
    ],
)
def test_with_what_else_a_request_says(desk: Desk, params: dict[str, Any], expected: set[str]) -> None:
    names = {"banned": "banned_tokens", "allowed": "allowed_tokens", "stop": "stop_tokens"}
    given = {
        names.get(key, key): tuple(desk.id(one) if one != END else END for one in value) if key in names else value
        for key, value in params.items()
    }
    desk.admit(0, Constraint.regex("[xy]{1,8}"), output="x", **given)
    assert desk.allowed(0, 1) == expected


def test_min_tokens_yields_to_the_end_of_the_grammar(desk: Desk) -> None:
    desk.admit(0, Constraint.regex("a?"), min_tokens=9, banned_tokens=(desk.id("a"),))
    assert desk.allowed(0) == {"END"}


def test_nothing_left_to_draw_from(desk: Desk) -> None:
    """Complete if what is there is fine as it is, a dead end if it is not; the draw goes on, with numbers in it."""
    nothing = (desk.id("q"),)
    desk.admit(0, Constraint.regex("ab"), allowed_tokens=nothing)
    assert desk.finish(0) is FinishReason.DEAD_END
    desk.admit(0, Constraint.regex("a?b?"), allowed_tokens=nothing, ignore_eos=True)
    assert desk.finish(0) is FinishReason.COMPLETE
    desk.admit(1, Constraint.regex("a"), output="b")  # what it cannot have drawn
    assert desk.finish(1, 1) is FinishReason.DEAD_END
    masked = desk.mask(0)
    assert masked is not None
    assert masked.allowed_of(0) is None
    assert len(tokens_of(masked.allowed[0])) == tiny_models.VOCAB
    assert masked.settle([3]) == {0: FinishReason.COMPLETE}


def test_a_grammar_that_has_grown_too_complex(desk: Desk) -> None:
    desk.admit(0, Constraint.grammar('start: s\ns: s s | "x"'), output="x" * 400)
    assert desk.finish(0, 400) is FinishReason.DEAD_END


def test_a_mask_that_takes_too_long_is_the_last(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the text might end."""
    desk.admit(0, Constraint.regex("x*"), output="x")
    assert desk.allowed(0, 1) == {"x", "END"}
    monkeypatch.setattr(module, "SLOWEST_MASK_S", -1.0)
    assert desk.finish(0, 1) is FinishReason.DEAD_END
    masked = desk.mask(0, outputs=1)
    assert masked is not None
    assert len(tokens_of(masked.allowed[0])) == tiny_models.VOCAB
