"""What the grammar of a whole response lets through; `tool_calls/test_round_trip.py` parses what it generates."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.marker_vocabulary import Vocabularies
from penstock.errors import InvalidRequest
from penstock.flow import Constraint, OutputFormat, ReasoningMarkers, Tool, ToolUse
from penstock.prompt.answer_grammar import answer_constraint
from penstock.tool_calls.registry import output_markers

THINK = ReasoningMarkers("<think>", "</think>")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
        "unit": {"enum": ["celsius", 'f"{', None]},
        "more": {"type": "array", "items": {"type": "number"}, "maxItems": 3},
        "deep": {"type": "object", "properties": {"x": {"type": ["boolean", "null"]}}, "required": ["x"]},
    },
    "required": ["city", "deep"],
}
TOOLS = (Tool(name="weather", parameters=SCHEMA), Tool(name="now"))


def use(choice: str = "auto", **more: Any) -> ToolUse:
    return ToolUse(tools=TOOLS, choice=choice, name="weather" if choice == "named" else None, **more)  # type: ignore[arg-type]


TAGGED = OutputFormat(tool_calls="generic")
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "deep": {"x": null}}}\n</tool_call>'


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "letters"])
@pytest.mark.parametrize(
    ("how", "text", "taken"),
    [
        (use(), "", True),
        (use(), "just an answer {with} <tags>\n", True),
        (use(), CALL, True),
        (use(), f"Let me see.\n{CALL}\n{WEATHER}", True),
        (use(), f"Let me see.\n{CALL}\nSo.", False),
        (use(), "<tool_call>", False),
        (use(), "<tool_call>so to speak", False),
        (use(), CALL.replace("now", "never"), False),
        (use(), CALL.replace("{}", '{"a": 1}'), False),
        (use(), WEATHER.replace('"city": "Oslo", ', ""), False),
        (use(), WEATHER.replace("null", "7"), False),
        (use(parallel=False), CALL, True),
        (use(parallel=False), f"{CALL}\n{CALL}", False),
        (use("required"), f"{CALL}\n{WEATHER}", True),
        (use("required"), "\n".join([CALL] * 16), True),
        (use("required"), "\n".join([CALL] * 17), False),
        (use("required"), f"Well. {CALL}", False),
        (use("required"), "", False),
        (use("named"), WEATHER, True),
        (use("named"), CALL, False),
        (use("named"), f"{WEATHER}\n{WEATHER}", False),
    ],
)
def test_what_an_answer_with_tools_may_be(
    tokens: bool, how: ToolUse, text: str, taken: bool, vocabularies: Vocabularies
) -> None:
    words = vocabularies.of(output_markers(TAGGED) if tokens else ())
    constraint = answer_constraint(TAGGED, how, None, words.tokenizer.mark)
    assert words.takes(constraint, text) is taken


ASKED = {
    "json_object": (Constraint.json_object(), '{"a": 1}', "[1]"),
    "json_schema": (Constraint.json_schema({"type": "integer"}), "7", "x"),
    "regex": (Constraint.regex(r"(a/b\/\\\n)+"), "a/b/\\\n", "ab"),
    "choice": (Constraint.choice(["yes", 'n"o']), 'n"o', "maybe"),
    "grammar": (Constraint.grammar('start: answer+\nanswer: TEXT\nTEXT: "ja" | "nein"'), "janein", "jein"),
}


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "letters"])
@pytest.mark.parametrize("kind", ASKED)
def test_a_constraint_binds_the_answer_and_not_the_reasoning(
    kind: str, tokens: bool, vocabularies: Vocabularies
) -> None:
    asked, right, wrong = ASKED[kind]
    for opened in (False, True):
        output_format = OutputFormat(reasoning=THINK, in_reasoning=opened)
        words = vocabularies.of(output_markers(output_format) if tokens else ())
        constraint = answer_constraint(output_format, None, asked, words.tokenizer.mark)
        before = "" if opened else "<think>\n"
        assert words.takes(constraint, f"{before}anything, {wrong} or {right}\n</think>\n\n{right}")
        assert not words.takes(constraint, f"{before}hm</think>\n\n{wrong}")
        assert not words.takes(constraint, f"{before}hm")
        assert words.takes(constraint, right) is not opened
    assert answer_constraint(OutputFormat(), None, asked, words.tokenizer.mark) is asked


@pytest.mark.parametrize("kind", ASKED)
def test_a_constraint_beside_tools_is_what_an_answer_without_calls_keeps_to(
    kind: str, vocabularies: Vocabularies
) -> None:
    asked, right, wrong = ASKED[kind]
    words = vocabularies.of(output_markers(TAGGED))
    constraint = answer_constraint(TAGGED, use(), asked, words.tokenizer.mark)

    assert words.takes(constraint, right)
    assert words.takes(constraint, CALL)
    assert not words.takes(constraint, wrong)
    assert not words.takes(constraint, f"{right}{CALL}")


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "letters"])
@pytest.mark.parametrize("kind", [None, *ASKED])
@pytest.mark.parametrize("marks", [THINK, ReasoningMarkers("[THINK]", "[/THINK]")], ids=["think", "THINK"])
def test_reasoning_is_closed_when_its_budget_is_spent(
    kind: str | None, tokens: bool, marks: ReasoningMarkers, vocabularies: Vocabularies
) -> None:
    asked, right, wrong = (None, "any", None) if kind is None else ASKED[kind]
    for opened in (False, True):
        output_format = OutputFormat(reasoning=marks, in_reasoning=opened, reasoning_budget=40)
        words = vocabularies.of(output_markers(output_format) if tokens else ())
        constraint = answer_constraint(output_format, None, asked, words.tokenizer.mark)
        before = "" if opened else f"{marks.open}"
        for thought in ("", "x" * 7, f"{marks.close[:-1]}x", "x" * 40):  # a byte is a token here
            assert words.takes(constraint, f"{before}{thought}{marks.close}\n{right}"), thought
            assert wrong is None or not words.takes(constraint, f"{before}{thought}{marks.close}{wrong}")
        assert not words.takes(constraint, f"{before}{'x' * 41}{marks.close}{right}")
        assert words.takes(constraint, right) is not opened

        # Wherever a sequence is taken up again, as after a preemption, there is one way on.
        matcher = words.compiler.compile(constraint)
        assert matcher.consume_tokens(words.tokenizer.encode(f"{before}{'x' * 40}", add_special=False))
        closing = words.tokenizer.encode(marks.close, add_special=False)
        for token in closing:
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            assert [one for one in range(words.tokenizer.vocab_size) if mask >> one & 1] == [token]
            assert matcher.consume_token(token)


def test_reasoning_without_a_budget_is_closed_at_once(vocabularies: Vocabularies) -> None:
    for budget, taken in ((0, False), (1, True)):
        output_format = OutputFormat(reasoning=THINK, in_reasoning=True, reasoning_budget=budget)
        words = vocabularies.of(output_markers(output_format))
        constraint = answer_constraint(output_format, None, None, words.tokenizer.mark)
        assert words.takes(constraint, "</think>x")
        assert words.takes(constraint, "x</think>x") is taken


def test_a_budget_goes_with_tools(vocabularies: Vocabularies) -> None:
    output_format = OutputFormat(tool_calls="generic", reasoning=THINK, in_reasoning=True, reasoning_budget=5)
    words = vocabularies.of(output_markers(output_format))
    constraint = answer_constraint(output_format, use("required"), None, words.tokenizer.mark)
    assert words.takes(constraint, f"hmmmm</think>\n{CALL}")
    assert not words.takes(constraint, f"hmmmmm</think>\n{CALL}")
    assert not words.takes(constraint, "hmmmm</think>\nNo.")


def test_as_many_choices_as_there_may_be_behind_reasoning(vocabularies: Vocabularies) -> None:
    output_format = OutputFormat(reasoning=THINK)
    words = vocabularies.of(output_markers(output_format))
    asked = Constraint.choice([f"number {place}" for place in range(10_000)])
    constraint = answer_constraint(output_format, None, asked, words.tokenizer.mark)
    assert words.takes(constraint, "<think>many</think>number 9999")
    assert not words.takes(constraint, "<think>many</think>number 10000")


def test_a_constraint_beside_calls_that_look_like_answers_is_refused() -> None:
    output_format = OutputFormat(tool_calls="llama3_json")
    with pytest.raises(InvalidRequest, match="cannot be used together") as caught:
        answer_constraint(output_format, use(), Constraint.json_object(), lambda mark: None)
    assert caught.value.param == "response_format"
    assert answer_constraint(output_format, use("required"), Constraint.json_object(), lambda mark: None) is not None
