"""Calls that a syntax writes, or that its grammar lets through, are parsed back equal, however the text is cut."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from helpers.marker_vocabulary import Vocabularies
from helpers.split_stream import split_in_every_way, split_stream
from penstock.flow import OutputFormat, ReasoningMarkers, Tool, ToolUse
from penstock.prompt.answer_grammar import answer_constraint
from penstock.tool_calls.argument_schema import close_arguments
from penstock.tool_calls.gemma import GemmaSyntax
from penstock.tool_calls.registry import SYNTAXES, output_markers

HOSTILE = {
    "quotes": 'say "hi" and \\"hi\\"',
    "braces": "}}]]{{[[ }",
    "marks": '</tool_call><tool_call>{"name": "x"}[TOOL_CALLS][ARGS]<|/tool_call|></think><|python_tag|>',
    "breaks": "a\nb\r\n\tc\u2028d\x7f",
    "unicode": "日本語 🦙 naïve \u200d é",
    "escapes": "\\ \\n \\u0041 \\\\",
    "deep": {"a": [1, 2.5, True, False, None, {"b": "}", "c": []}], "": "empty key", "{": "}"},
    "empty": "",
    "long": "x" * 2000 + '"' + "y" * 2000,
}


@pytest.mark.parametrize("name", SYNTAXES)
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_call_has_the_arguments_that_were_written(name: str, kind: str) -> None:
    arguments = {"value": HOSTILE[kind], "last": 1}
    if isinstance(SYNTAXES[name], GemmaSyntax) and kind == "deep":
        arguments = {"value": {"a": [1, 2.5, True, None, {"b": "}"}, []], "c": {}}, "last": 1}  # it has bare keys
    text = SYNTAXES[name].write([("f", arguments)])

    reasoning, shown, calls = split_in_every_way(text, OutputFormat(tool_calls=name))

    assert (reasoning, shown) == ("", "")
    ((called, given),) = calls
    assert called == "f"
    assert json.loads(given) == arguments
    if not isinstance(SYNTAXES[name], GemmaSyntax):
        assert given == json.dumps(arguments, ensure_ascii=False)  # to the letter


@pytest.mark.parametrize("name", SYNTAXES)
def test_nothing_of_a_call_that_was_cut_is_text_where_all_are_calls(name: str) -> None:
    whole = SYNTAXES[name].write([("f", {"a": 1})])
    for end in range(len(whole)):
        assert split_stream([whole[:end]], OutputFormat(tool_calls=name, calls_only=True))[1] == ""
        if SYNTAXES[name].parallel:
            _, shown, calls = split_stream([f"{whole}\n{whole[:end]}"], OutputFormat(tool_calls=name, calls_only=True))
            assert (shown, calls[0]) == (
                "",
                ("f", '{"a": 1}' if not isinstance(SYNTAXES[name], GemmaSyntax) else calls[0][1]),
            )


@pytest.mark.parametrize(
    ("syntax", "text", "calls"),
    [
        ("hermes", '<tool_call>[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"b": 2}}]</tool_call>', 2),
        (
            "hermes",
            '<tool_call>{"arguments": {"a": [1]}, "id": "x", "name": "f"}</tool_call>',
            1,
        ),  # the name comes late
        ("hermes", '<tool_call>  {  "name"\n:\t"f" , "type": {"x": "}"} }  </tool_call>', 1),  # without arguments
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"}\\"}"}</tool_call>', 1),  # in a string
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}', 1),  # without its end
        ("mistral_list", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"}, {"name": "g"}]', 2),
        ("phi4", 'functools[{"name": "f", "arguments": {"a": 1}}]', 1),
        ("llama3_json", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', 1),
        ("llama3_json", '\n {"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}\n', 2),
        ("llama3_json", '{"name": "f", "parameters": {}} {"name": "g", "arguments": {}}', 2),
    ],
)
def test_other_ways_to_write_a_call(syntax: str, text: str, calls: int) -> None:
    _, shown, made = split_in_every_way(text, OutputFormat(tool_calls=syntax))

    assert [name for name, _ in made] == ["f", "g"][:calls]
    assert all(isinstance(json.loads(arguments), dict) for _, arguments in made)
    assert shown == ""


@pytest.mark.parametrize("name", SYNTAXES)
def test_a_call_that_is_cut_short_has_the_beginning_of_its_arguments(name: str) -> None:
    whole = SYNTAXES[name].write([("weather", {"city": 'O"sl\\o\n}', "days": [1, 2]})])
    expected = split_stream([whole], OutputFormat(tool_calls=name))[2][0][1]
    before = ""
    for end in range(len(whole)):
        _, text, calls = split_stream(whole[:end], OutputFormat(tool_calls=name))
        given = calls[0][1] if calls else ""
        assert expected.startswith(given)
        assert given.startswith(before)  # what was shown is never taken back
        assert not calls or not text
        before = given
    assert len(before) > len(expected) - 6


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
SCHEMAS = {"weather": close_arguments(SCHEMA), "now": close_arguments({})}


@pytest.mark.parametrize("name", SYNTAXES)
@pytest.mark.parametrize("choice", ["auto", "required", "named"])
@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "letters"])
@pytest.mark.parametrize("in_reasoning", [None, False, True], ids=["plain", "thinks", "thinking"])
def test_what_the_grammar_lets_through_is_parsed_as_valid_calls(
    name: str, choice: Any, tokens: bool, in_reasoning: bool | None, vocabularies: Vocabularies
) -> None:
    reasoning_markers = None if in_reasoning is None else THINK
    output_format = OutputFormat(tool_calls=name, reasoning=reasoning_markers, in_reasoning=bool(in_reasoning))
    markers = output_markers(output_format)
    vocabulary = vocabularies.of(markers if tokens else ())
    tools = ToolUse(tools=TOOLS, choice=choice, name="weather" if choice == "named" else None)
    constraint = answer_constraint(output_format, tools, None, vocabulary.tokenizer.mark)
    assert constraint is not None
    rng = random.Random(f"{name} {choice} {tokens} {in_reasoning}")
    made = 0
    for _ in range(3):
        text, ended = vocabulary.walk(constraint, rng, markers)
        reasoning, _, calls = split_stream([text], output_format)
        assert split_stream(text, output_format)[2] == calls
        assert reasoning == "" or in_reasoning is not None
        for called, arguments in calls[: None if ended else -1]:
            jsonschema.validate(json.loads(arguments), SCHEMAS[called])
            assert choice != "named" or called == "weather"
        assert choice == "auto" or calls or not ended, text
        made += len(calls)
    assert made or choice == "auto" or in_reasoning is not None


@pytest.mark.parametrize("name", SYNTAXES)
@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "letters"])
def test_what_a_syntax_writes_its_grammar_lets_through(name: str, tokens: bool, vocabularies: Vocabularies) -> None:
    output_format = OutputFormat(tool_calls=name)
    vocabulary = vocabularies.of(output_markers(output_format) if tokens else ())
    tools = ToolUse(tools=TOOLS, choice="required")
    constraint = answer_constraint(output_format, tools, None, vocabulary.tokenizer.mark)
    assert constraint is not None
    calls: list[tuple[str, dict[str, Any]]] = [
        ("weather", {"city": "Zürich }]\n", "days": 3, "unit": 'f"{', "more": [1.5, -2], "deep": {"x": None}}),
        ("now", {}),
    ]
    text = SYNTAXES[name].write(calls[: 2 if SYNTAXES[name].parallel else 1])
    assert vocabulary.takes(constraint, text)
    _, shown, parsed = split_in_every_way(text, output_format)
    assert (shown, [(called, json.loads(given)) for called, given in parsed]) == ("", calls[: len(parsed)])
    assert len(parsed) == (2 if SYNTAXES[name].parallel else 1)
