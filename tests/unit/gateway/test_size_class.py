"""Signals of a request that say how large a model it needs."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.flow import Constraint, Request, SamplingParams, Tool, ToolUse
from penstock.gateway.size_class import LONG_OUTPUT, LONG_TEXT, MANY_TURNS, VERY_LONG_TEXT, is_code, size_class


def request(text: str = "What is the capital of France?", **fields: Any) -> Request:
    params = fields.pop("params", SamplingParams())
    return Request(id="r", params=params, messages=[{"role": "user", "content": text}], **fields)


def signals(*requests: Request) -> tuple[str, ...]:
    return size_class(requests).signals


def test_a_short_question_goes_to_the_small_model() -> None:
    found = size_class([request()])
    assert (found.points, found.index(3)) == (0, 0)
    assert found.reason == "no signal of a hard request"


def test_each_signal_is_a_point() -> None:
    tools = ToolUse(tools=(Tool(name="look"),))
    assert signals(request("x" * (LONG_TEXT + 1))) == ("length",)
    assert signals(request("x" * (VERY_LONG_TEXT + 1))) == ("length", "length")
    assert signals(request("Fix this:\n```\nx\n```")) == ("code",)
    assert signals(request(tools=tools)) == ("tools",)
    assert signals(request(params=SamplingParams(constraint=Constraint.json_object()))) == ("schema",)
    assert signals(request(reasoning_effort="high")) == ("reasoning",)
    assert signals(request(reasoning_effort="none")) == ()
    assert signals(request(params=SamplingParams(max_tokens=LONG_OUTPUT + 1))) == ("output",)
    many = [{"role": "user", "content": "a"}] * (MANY_TURNS + 1)
    assert signals(Request(id="r", params=SamplingParams(), messages=many)) == ("turns",)
    assert signals(Request(id="r", params=SamplingParams(), text="x" * (LONG_TEXT + 1))) == ("length",)


def test_points_choose_the_model_and_the_last_is_the_largest() -> None:
    hard = size_class([request("x" * (VERY_LONG_TEXT + 1), reasoning_effort="high")])
    assert [hard.index(count) for count in (1, 2, 3, 4, 9)] == [0, 1, 2, 3, 3]
    assert hard.reason == "3 points (length, length, reasoning)"
    assert size_class([request("x" * (LONG_TEXT + 1))]).reason == "1 point (length)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import os\ndef f(x):\n    return x", True),
        ("int main() {\n  return 0;\n}", True),
        ("Please import the goods, and\nclass them by size.", False),
        ("Write a poem; make it short.", False),
        ("", False),
    ],
)
def test_code_is_recognized_by_several_lines(text: str, expected: bool) -> None:
    assert is_code(text) is expected
