"""Text is taken apart into reasoning, answer and calls; where it is cut into pieces changes nothing."""

from __future__ import annotations

import pytest

from helpers.split_stream import SplitParts, split_in_every_way, split_stream
from penstock.flow import CallDelta, OutputFormat, ReasoningMarkers
from penstock.stream.output_parser import OutputParser
from penstock.tool_calls.registry import SYNTAXES

THINK = ReasoningMarkers("<think>", "</think>")


@pytest.mark.parametrize("name", [name for name, syntax in SYNTAXES.items() if syntax.opening])
def test_text_before_calls_and_between_them(name: str) -> None:
    syntax = SYNTAXES[name]
    calls = [syntax.write([("f", {"a": 1})]), syntax.write([("g-2", {})])]

    text = "Let me see.\n\n" + "\n".join(calls) + "\n"

    read_calls = [("f", '{"a": 1}'), ("g-2", "{}")]
    assert split_in_every_way(text, OutputFormat(tool_calls=name)) == ("", "Let me see.", read_calls)
    assert split_in_every_way(text + "Done.", OutputFormat(tool_calls=name)) == ("", "Let me see.\nDone.", read_calls)


@pytest.mark.parametrize(
    ("syntax", "text"),
    [
        ("hermes", "an answer, {braces} and all\n"),
        ("hermes", "a < b, <tool, <tool_cal"),
        ("hermes", "<tool_call>no call</tool_call> at all"),
        ("hermes", '<tool_call>{"city": "Oslo"}</tool_call>'),
        ("hermes", '<tool_call>{"name": 5}</tool_call>'),
        ("llama3_json", 'I would call {"name": "f", "parameters": {}}.'),
        ("llama3_json", ' {"city": "Oslo"}'),
        ("llama3_json", "{not json"),
        ("llama3_json", '{"na'),
        ("llama3_json", "[1, 2] <|python"),
        ("mistral_list", "[TOOL_CALLS] nothing [TOOL"),
        ("mistral", "[1] [TOOL_CALLS" + "S" * 2000),
    ],
)
def test_what_is_no_call_is_text_to_the_letter(syntax: str, text: str) -> None:
    assert split_in_every_way(text, OutputFormat(tool_calls=syntax)) == ("", text, [])


def test_half_a_call_without_a_name_is_not_shown() -> None:
    assert split_stream(['ok <tool_call>\n{"na'], OutputFormat(tool_calls="hermes")) == ("", "ok", [])


def test_arguments_leave_as_they_come() -> None:
    parser = OutputParser(OutputFormat(tool_calls="hermes"))

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
    deep = "<|tool_call>call:f" + "{a:" * 5000

    _, text, calls = split_stream([deep], OutputFormat(tool_calls="gemma4"))

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
    assert split_in_every_way(text, OutputFormat(reasoning=THINK, in_reasoning=opened)) == expected


def test_a_call_within_the_reasoning_is_a_thought() -> None:
    call = SYNTAXES["hermes"].write([("f", {})])
    text = f"<think>shall I {call}?</think>\n\nWell.\n{call}"

    reasoning, shown, calls = split_in_every_way(text, OutputFormat(tool_calls="hermes", reasoning=THINK))

    assert reasoning == f"shall I {call}?"
    assert (shown, calls) == ("Well.", [("f", "{}")])


def test_a_bare_call_behind_the_reasoning() -> None:
    text = '<think>hm</think>\n\n{"name": "f", "parameters": {"a": 1}}'

    assert split_in_every_way(text, OutputFormat(tool_calls="llama3_json", reasoning=THINK)) == (
        "hm",
        "",
        [("f", '{"a": 1}')],
    )
