"""The grammars made here and the parsers of `stream` are of one mind: what a grammar lets through is read as calls that
are valid by their schemas, and what is no such call is not let through."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from helpers.split_stream import split_stream
from penstock.errors import InvalidRequest
from penstock.flow import Constraint, OutputFormat, ReasoningMarkers, Tool, ToolUse
from penstock.grammar.compiler import Compiler
from penstock.prompt.answer_grammar import closed, constraint_of
from penstock.prompt.families import FAMILIES, GENERIC, Family
from penstock.tokenize import Tokenizer

END = 1
THINK = ReasoningMarkers("<think>", "</think>")
BY_NAME = {family.name: family for family in (*FAMILIES, GENERIC)}
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
SCHEMAS = {"weather": closed(SCHEMA), "now": closed({})}


class Vocabulary:
    """Every byte is a token, and every mark that is told."""

    def __init__(self, folder: Path, marks: tuple[str, ...]) -> None:
        words = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
        backend = Backend(models.BPE({word: index for index, word in enumerate(words)}, []))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens([AddedToken(word, special=True) for word in ("<s>", "</s>", *marks)])
        path = folder / f"{abs(hash(marks))}.json"
        backend.save(str(path))
        self.tokenizer = Tokenizer.load(path)
        self.compiler = Compiler(path, self.tokenizer.vocab_size, (END,))

    def takes(self, constraint: Constraint, text: str) -> bool:
        """Whether this may be a whole answer."""
        matcher = self.compiler.compile(constraint)
        tokens = self.tokenizer.encode(text, add_special=False)
        return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())

    def walk(self, constraint: Constraint, rng: random.Random, marks: tuple[str, ...]) -> tuple[str, bool]:
        """An answer of random letters, fond of marks and of ends; and whether it came to an end."""
        matcher = self.compiler.compile(constraint)
        tokens: list[int] = []
        spelt = {mark: self.tokenizer.encode(mark, add_special=False) for mark in marks}
        while len(tokens) < 1500 and not matcher.is_stopped():
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            allowed = [token for token in range(self.tokenizer.vocab_size) if mask >> token & 1]
            assert allowed
            liked = [[token] for token in allowed if token == END or token > 257 or self.token(token) in '"}]']
            liked += [ids for ids in spelt.values() if matcher.validate_tokens(ids) == len(ids)]
            chosen = rng.choice(liked) if liked and rng.random() < 0.2 else [rng.choice(allowed)]
            if chosen == [END]:
                return self.text(tokens), True
            assert matcher.consume_tokens(chosen)
            tokens += chosen
        return self.text(tokens), matcher.is_stopped()

    def token(self, token: int) -> str:
        return self.tokenizer.token_bytes(token).decode(errors="replace")

    def text(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special=False)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("vocabularies")
    return cache(lambda marks: Vocabulary(folder, marks))


def use(choice: str = "auto", **more: Any) -> ToolUse:
    return ToolUse(tools=TOOLS, choice=choice, name="weather" if choice == "named" else None, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", BY_NAME.values(), ids=BY_NAME)
@pytest.mark.parametrize("choice", ["auto", "required", "named"])
@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "letters"])
@pytest.mark.parametrize("opened", [None, False, True], ids=["plain", "thinks", "thinking"])
def test_whatever_is_let_through_is_read_as_valid_calls(
    family: Family, choice: str, tokens: bool, opened: bool | None, vocabulary: Any
) -> None:
    output_format = OutputFormat(calls=family.calls, thinking=None if opened is None else THINK, opened=bool(opened))
    words = vocabulary(output_format.marks if tokens else ())
    constraint = constraint_of(output_format, use(choice), None, words.tokenizer.mark)
    rng = random.Random(f"{family.name} {choice} {tokens} {opened}")
    made = 0
    for _ in range(3):
        text, ended = words.walk(constraint, rng, output_format.marks)
        reasoning, _, calls = split_stream([text], output_format)
        assert split_stream(text, output_format)[2] == calls
        assert reasoning == "" or opened is not None
        for name, arguments in calls[: None if ended else -1]:
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])
            assert choice != "named" or name == "weather"
        assert choice == "auto" or calls or not ended, text
        made += len(calls)
    assert made or choice == "auto" or opened is not None


TAGGED = OutputFormat(calls=GENERIC.calls)
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
def test_what_an_answer_with_tools_may_be(tokens: bool, how: ToolUse, text: str, taken: bool, vocabulary: Any) -> None:
    words = vocabulary(TAGGED.marks if tokens else ())
    constraint = constraint_of(TAGGED, how, None, words.tokenizer.mark)
    assert words.takes(constraint, text) is taken


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ('{"name": "now", "parameters": {}}', True),
        ('<|python_tag|>{"name": "now", "parameters": {}}', True),
        ("It is {noon}.", True),
        ('{"time": "noon"}', False),
        (' {"time": "noon"}', False),
        ('{"name": "now", "parameters": {}}{"name": "now", "parameters": {}}', False),
    ],
)
def test_calls_without_a_mark(text: str, taken: bool, vocabulary: Any) -> None:
    output_format = OutputFormat(calls=BY_NAME["llama 3"].calls)
    words = vocabulary(output_format.marks)
    assert words.takes(constraint_of(output_format, use(), None, words.tokenizer.mark), text) is taken


ASKED = {
    "json_object": (Constraint.json_object(), '{"a": 1}', "[1]"),
    "json_schema": (Constraint.json_schema({"type": "integer"}), "7", "x"),
    "regex": (Constraint.regex(r"(a/b\/\\\n)+"), "a/b/\\\n", "ab"),
    "choice": (Constraint.choice(["yes", 'n"o']), 'n"o', "maybe"),
    "grammar": (Constraint.grammar('start: answer+\nanswer: TEXT\nTEXT: "ja" | "nein"'), "janein", "jein"),
}


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "letters"])
@pytest.mark.parametrize("kind", ASKED)
def test_a_constraint_binds_the_answer_and_not_the_reasoning(kind: str, tokens: bool, vocabulary: Any) -> None:
    asked, right, wrong = ASKED[kind]
    for opened in (False, True):
        output_format = OutputFormat(thinking=THINK, opened=opened)
        words = vocabulary(output_format.marks if tokens else ())
        constraint = constraint_of(output_format, None, asked, words.tokenizer.mark)
        before = "" if opened else "<think>\n"
        assert words.takes(constraint, f"{before}anything, {wrong} or {right}\n</think>\n\n{right}")
        assert not words.takes(constraint, f"{before}hm</think>\n\n{wrong}")
        assert not words.takes(constraint, f"{before}hm")
        assert words.takes(constraint, right) is not opened
    assert constraint_of(OutputFormat(), None, asked, words.tokenizer.mark) is asked


@pytest.mark.parametrize("kind", ASKED)
def test_a_constraint_beside_tools_is_what_an_answer_without_calls_keeps_to(kind: str, vocabulary: Any) -> None:
    asked, right, wrong = ASKED[kind]
    words = vocabulary(TAGGED.marks)
    constraint = constraint_of(TAGGED, use(), asked, words.tokenizer.mark)

    assert words.takes(constraint, right)
    assert words.takes(constraint, CALL)
    assert not words.takes(constraint, wrong)
    assert not words.takes(constraint, f"{right}{CALL}")


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "letters"])
@pytest.mark.parametrize("kind", [None, *ASKED])
@pytest.mark.parametrize("marks", [THINK, ReasoningMarkers("[THINK]", "[/THINK]")], ids=["think", "THINK"])
def test_reasoning_is_closed_when_its_budget_is_spent(
    kind: str | None, tokens: bool, marks: ReasoningMarkers, vocabulary: Any
) -> None:
    asked, right, wrong = (None, "any", None) if kind is None else ASKED[kind]
    for opened in (False, True):
        output_format = OutputFormat(thinking=marks, opened=opened, budget=40)
        words = vocabulary(output_format.marks if tokens else ())
        constraint = constraint_of(output_format, None, asked, words.tokenizer.mark)
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


def test_reasoning_without_a_budget_is_closed_at_once(vocabulary: Any) -> None:
    for budget, taken in ((0, False), (1, True)):
        output_format = OutputFormat(thinking=THINK, opened=True, budget=budget)
        words = vocabulary(output_format.marks)
        constraint = constraint_of(output_format, None, None, words.tokenizer.mark)
        assert words.takes(constraint, "</think>x")
        assert words.takes(constraint, "x</think>x") is taken


def test_a_budget_goes_with_tools(vocabulary: Any) -> None:
    output_format = OutputFormat(calls=TAGGED.calls, thinking=THINK, opened=True, budget=5)
    words = vocabulary(output_format.marks)
    constraint = constraint_of(output_format, use("required"), None, words.tokenizer.mark)
    assert words.takes(constraint, f"hmmmm</think>\n{CALL}")
    assert not words.takes(constraint, f"hmmmmm</think>\n{CALL}")
    assert not words.takes(constraint, "hmmmm</think>\nNo.")


def test_as_many_choices_as_there_may_be_behind_reasoning(vocabulary: Any) -> None:
    output_format = OutputFormat(thinking=THINK)
    words = vocabulary(output_format.marks)
    asked = Constraint.choice([f"number {place}" for place in range(10_000)])
    constraint = constraint_of(output_format, None, asked, words.tokenizer.mark)
    assert words.takes(constraint, "<think>many</think>number 9999")
    assert not words.takes(constraint, "<think>many</think>number 10000")


def test_a_constraint_beside_calls_that_look_like_answers_is_refused() -> None:
    output_format = OutputFormat(calls=BY_NAME["llama 3"].calls)
    with pytest.raises(InvalidRequest, match="cannot be used together") as caught:
        constraint_of(output_format, use(), Constraint.json_object(), lambda mark: None)
    assert caught.value.param == "response_format"
    assert constraint_of(output_format, use("required"), Constraint.json_object(), lambda mark: None) is not None


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "string", "pattern": "x"}}},
        {"properties": {"a": {"allOf": [{"type": "string"}]}}},
        {"properties": {}, "required": ["a"]},
        {"properties": {"a": {"$ref": "https://example.org/a"}}},
    ],
)
def test_what_gemmas_notation_cannot_say_is_refused(schema: dict[str, Any]) -> None:
    output_format = OutputFormat(calls=BY_NAME["gemma 4"].calls)
    asked = ToolUse(tools=(Tool(name="f", parameters=schema),))
    with pytest.raises(InvalidRequest, match="not supported in this model's notation") as caught:
        constraint_of(output_format, asked, None, lambda mark: None)
    assert caught.value.param == "tools"


def test_a_schema_in_gemmas_notation(vocabulary: Any) -> None:
    schema = {
        "type": "object",
        "properties": {
            "node": {"$ref": "#/$defs/node"},
            "any": {},
            "word": {"type": "string", "minLength": 2, "maxLength": 3},
            "some": {"type": "array", "items": {"enum": ["a", 1]}, "minItems": 1, "maxItems": 2},
        },
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
    }
    output_format = OutputFormat(calls=BY_NAME["gemma 4"].calls)
    words = vocabulary(output_format.marks)
    constraint = constraint_of(
        output_format, ToolUse(tools=(Tool(name="f", parameters=schema),)), None, words.tokenizer.mark
    )

    def takes(arguments: str) -> bool:
        text = arguments.replace("'", '<|"|>')
        return bool(words.takes(constraint, f"<|tool_call>call:f{text}<tool_call|>"))

    for right in ("{}", "{node:{next:{next:{}}}}", "{any:['x',{y:1.5,z:null}]}", "{word:'abc'}", "{some:['a',1]}"):
        assert takes(right), right
    for wrong in ("{", "{a:1}", "{word:'a'}", "{word:'abcd'}", "{some:[]}", "{some:['b']}", "{node:1}", "{word:abc}"):
        assert not takes(wrong), wrong


def test_both_marks_of_a_list(vocabulary: Any) -> None:
    output_format = OutputFormat(calls=BY_NAME["phi 4"].calls)
    words = vocabulary(output_format.marks)
    constraint = constraint_of(output_format, use(), None, words.tokenizer.mark)
    listed = '[{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]'

    for text in (f"Well. <|tool_call|>{listed}<|/tool_call|>", f"functools{listed}", "import functools\n"):
        assert words.takes(constraint, text), text
    assert not words.takes(constraint, 'functools[{"name": "never"}]')


CLOSED = {"additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        ({}, {"type": "object", "properties": {}, "additionalProperties": False}),
        ({"additionalProperties": True}, {"type": "object", "additionalProperties": True}),
        ({"required": ["a"]}, {"type": "object", "required": ["a"]}),
        ({"required": 5, "properties": 5}, {"type": "object", "required": 5, "properties": 5} | CLOSED),
        ({"anyOf": [{"required": ["a"]}]}, {"type": "object", "anyOf": [{"required": ["a"]}]}),
    ],
)
def test_arguments_have_no_room_for_more_unless_the_schema_says_so(
    schema: dict[str, Any], made: dict[str, Any]
) -> None:
    assert closed(schema) == made
