"""Text is taken apart into reasoning, answer and calls; where it is cut into pieces changes nothing."""

from __future__ import annotations

import json
import random

import pytest

from helpers.split_stream import SplitParts, split_stream
from penstock.flow import CallDelta, CallSyntax, OutputFormat, ReasoningMarkers
from penstock.prompt.families import FAMILIES, GENERIC
from penstock.stream.output_parser import OutputParser

SYNTAX = {family.name: family.calls for family in (*FAMILIES, GENERIC)}
THINK = ReasoningMarkers("<think>", "</think>")
TAGGED, LLAMA, MISTRAL = SYNTAX["hermes"], SYNTAX["llama 3"], SYNTAX["mistral, as a list"]

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


def written(syntax: CallSyntax, name: str, arguments: str) -> str:
    """A call as a family writes it."""
    body = f'{{"name": "{name}", "{syntax.arguments}": {arguments}}}'
    match syntax.shape:
        case "object":
            return f"{syntax.open}{syntax.gap}{body}{syntax.gap}{syntax.close}"
        case "list":
            return f"{syntax.open}[{body}]{syntax.close}"
        case "named":
            number = f"{syntax.id_mark}abcDEF123" if syntax.id_mark else ""
            return f"{syntax.open}{name}{number}{syntax.args_mark}{arguments}{syntax.close}"
        case "gemma":
            return f"{syntax.open}call:{name}{in_gemma(json.loads(arguments), syntax.quote)}{syntax.close}"


def in_gemma(value: object, quote: str) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{in_gemma(inner, quote)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(in_gemma(inner, quote) for inner in value) + "]"
    return f"{quote}{value}{quote}" if isinstance(value, str) else json.dumps(value)


def in_every_way(text: str, output_format: OutputFormat) -> SplitParts:
    """Whole, letter by letter, in two at every place, and in random pieces."""
    whole = split_stream([text], output_format)
    assert split_stream(text, output_format) == whole
    step = max(1, len(text) // 150)
    for place in range(0, len(text), step):
        assert split_stream([text[:place], text[place:]], output_format) == whole
    rng = random.Random(len(text))
    for _ in range(5):
        cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(1, 12)))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert split_stream(pieces, output_format) == whole
    return whole


@pytest.mark.parametrize("name", SYNTAX)
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_call_has_the_arguments_that_were_written(name: str, kind: str) -> None:
    arguments = {"value": HOSTILE[kind], "last": 1}
    if SYNTAX[name].shape == "gemma" and kind == "deep":
        arguments = {"value": {"a": [1, 2.5, True, None, {"b": "}"}, []], "c": {}}, "last": 1}  # it has bare keys
    text = written(SYNTAX[name], "f", json.dumps(arguments, ensure_ascii=False))

    reasoning, shown, calls = in_every_way(text, OutputFormat(calls=SYNTAX[name]))

    assert (reasoning, shown) == ("", "")
    ((called, given),) = calls
    assert called == "f"
    assert json.loads(given) == arguments
    if SYNTAX[name].shape != "gemma":
        assert given == json.dumps(arguments, ensure_ascii=False)  # to the letter


@pytest.mark.parametrize("name", [name for name, syntax in SYNTAX.items() if syntax.open])
def test_text_before_calls_and_between_them(name: str) -> None:
    syntax = SYNTAX[name]
    calls = [written(syntax, "f", '{"a": 1}'), written(syntax, "g-2", "{}")]

    text = "Let me see.\n\n" + "\n".join(calls) + "\n"

    read_calls = [("f", '{"a": 1}'), ("g-2", "{}")]
    assert in_every_way(text, OutputFormat(calls=syntax)) == ("", "Let me see.", read_calls)
    assert in_every_way(text + "Done.", OutputFormat(calls=syntax)) == ("", "Let me see.\nDone.", read_calls)


@pytest.mark.parametrize("name", SYNTAX)
def test_nothing_of_a_call_that_was_cut_is_text_where_all_are_calls(name: str) -> None:
    whole = written(SYNTAX[name], "f", '{"a": 1}')
    for end in range(len(whole)):
        assert split_stream([whole[:end]], OutputFormat(calls=SYNTAX[name], bound=True))[1] == ""
        if SYNTAX[name].several:
            _, shown, calls = split_stream([f"{whole}\n{whole[:end]}"], OutputFormat(calls=SYNTAX[name], bound=True))
            assert (shown, calls[0]) == ("", ("f", '{"a": 1}' if SYNTAX[name].shape != "gemma" else calls[0][1]))


@pytest.mark.parametrize(
    ("syntax", "text", "calls"),
    [
        (TAGGED, '<tool_call>[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"b": 2}}]</tool_call>', 2),
        (TAGGED, '<tool_call>{"arguments": {"a": [1]}, "id": "x", "name": "f"}</tool_call>', 1),  # the name comes late
        (TAGGED, '<tool_call>  {  "name"\n:\t"f" , "type": {"x": "}"} }  </tool_call>', 1),  # without arguments
        (TAGGED, '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"}\\"}"}</tool_call>', 1),  # in a string
        (TAGGED, '<tool_call>{"name": "f", "arguments": {}}', 1),  # without its end
        (MISTRAL, '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"}, {"name": "g"}]', 2),
        (SYNTAX["phi 4"], 'functools[{"name": "f", "arguments": {"a": 1}}]', 1),
        (LLAMA, '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', 1),
        (LLAMA, '\n {"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}\n', 2),
        (LLAMA, '{"name": "f", "parameters": {}} {"name": "g", "arguments": {}}', 2),
    ],
)
def test_other_ways_to_write_a_call(syntax: CallSyntax, text: str, calls: int) -> None:
    _, shown, made = in_every_way(text, OutputFormat(calls=syntax))

    assert [name for name, _ in made] == ["f", "g"][:calls]
    assert all(isinstance(json.loads(arguments), dict) for _, arguments in made)
    assert shown == ""


@pytest.mark.parametrize(
    ("syntax", "text"),
    [
        (TAGGED, "an answer, {braces} and all\n"),
        (TAGGED, "a < b, <tool, <tool_cal"),
        (TAGGED, "<tool_call>no call</tool_call> at all"),
        (TAGGED, '<tool_call>{"city": "Oslo"}</tool_call>'),
        (TAGGED, '<tool_call>{"name": 5}</tool_call>'),
        (LLAMA, 'I would call {"name": "f", "parameters": {}}.'),
        (LLAMA, ' {"city": "Oslo"}'),
        (LLAMA, "{not json"),
        (LLAMA, '{"na'),
        (LLAMA, "[1, 2] <|python"),
        (MISTRAL, "[TOOL_CALLS] nothing [TOOL"),
        (SYNTAX["mistral"], "[1] [TOOL_CALLS" + "S" * 2000),
    ],
)
def test_what_is_no_call_is_text_to_the_letter(syntax: CallSyntax, text: str) -> None:
    assert in_every_way(text, OutputFormat(calls=syntax)) == ("", text, [])


@pytest.mark.parametrize("name", SYNTAX)
def test_a_call_that_is_cut_short_has_the_beginning_of_its_arguments(name: str) -> None:
    arguments = json.dumps({"city": 'O"sl\\o\n}', "days": [1, 2]})
    whole = written(SYNTAX[name], "weather", arguments)
    expected = split_stream([whole], OutputFormat(calls=SYNTAX[name]))[2][0][1]
    before = ""
    for end in range(len(whole)):
        _, text, calls = split_stream(whole[:end], OutputFormat(calls=SYNTAX[name]))
        given = calls[0][1] if calls else ""
        assert expected.startswith(given)
        assert given.startswith(before)  # what was shown is never taken back
        assert not calls or not text
        before = given
    assert len(before) > len(expected) - 6


def test_half_a_call_without_a_name_is_not_shown() -> None:
    assert split_stream(['ok <tool_call>\n{"na'], OutputFormat(calls=TAGGED)) == ("", "ok", [])


def test_arguments_leave_as_they_come() -> None:
    parser = OutputParser(OutputFormat(calls=TAGGED))

    assert parser.push('Hi <tool_call>{"name": "f') == [("text", "Hi")]
    (first,) = parser.push('", "argu')
    (second,) = parser.push('ments": {"a": "b')
    (third,) = parser.push(" c")

    assert isinstance(first, CallDelta)
    assert first.id is not None
    assert first.id.startswith("call_")
    assert (first.name, first.arguments) == ("f", "")
    assert second == CallDelta(index=0, arguments='{"a": "b')
    assert third == CallDelta(index=0, arguments=" c")


def test_nesting_without_end_ends_as_text() -> None:
    syntax = SYNTAX["gemma 4"]
    deep = f"{syntax.open}call:f" + "{a:" * 5000

    _, text, calls = split_stream([deep], OutputFormat(calls=syntax))

    assert calls[0][0] == "f"
    assert text


# --- reasoning


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("<think>\nhm <b> hm\n\nso\n</think>\n\nYes.\n", False, ("hm <b> hm\n\nso", "Yes.\n", [])),
        ("hm\n</think>\n\nYes.", True, ("hm", "Yes.", [])),
        ("\n <think>hm</think>Yes </think> no", False, ("hm", "Yes </think> no", [])),
        ("<think>\n\n</think>\n\nYes.", False, ("", "Yes.", [])),
        ("Yes <think>no</think>", False, ("", "Yes <think>no</think>", [])),
        ("  Yes.", False, ("", "  Yes.", [])),
        ("<thin", False, ("", "<thin", [])),
        ("<think>hm </thi", False, ("hm </thi", "", [])),
        ("hm\n", True, ("hm\n", "", [])),
        ("", True, ("", "", [])),
    ],
)
def test_reasoning_stands_apart(text: str, opened: bool, expected: SplitParts) -> None:
    assert in_every_way(text, OutputFormat(thinking=THINK, opened=opened)) == expected


def test_a_call_within_the_reasoning_is_a_thought() -> None:
    call = written(TAGGED, "f", "{}")
    text = f"<think>shall I {call}?</think>\n\nWell.\n{call}"

    reasoning, shown, calls = in_every_way(text, OutputFormat(calls=TAGGED, thinking=THINK))

    assert reasoning == f"shall I {call}?"
    assert (shown, calls) == ("Well.", [("f", "{}")])


def test_a_bare_call_behind_the_reasoning() -> None:
    text = '<think>hm</think>\n\n{"name": "f", "parameters": {"a": 1}}'

    assert in_every_way(text, OutputFormat(calls=LLAMA, thinking=THINK)) == ("hm", "", [("f", '{"a": 1}')])
