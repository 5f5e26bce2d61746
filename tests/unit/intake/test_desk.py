from __future__ import annotations

from typing import Any

import pytest

from penstock.flow import Request, SamplingParams
from penstock.intake.desk import LONG_TEXT, is_long

HALF = "a" * (LONG_TEXT // 2)
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"text": [HALF]}}}


def asked(**prompt: Any) -> Request:
    return Request(id="", params=SamplingParams(), **prompt)


@pytest.mark.parametrize(
    "requests",
    [
        [asked(text=2 * HALF + "a")],
        [asked(text=HALF)] * 3,
        [asked(tokens=[0] * (LONG_TEXT + 1))],
        [
            asked(
                messages=[{"role": "user", "content": HALF}, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
            )
        ],
        [asked(messages=[{"role": "assistant", "content": HALF, "reasoning_content": HALF}])],
        [asked(messages=[{"role": "user", "content": ""}] * LONG_TEXT)],
        [asked(text="a")] * 1000,
    ],
)
def test_long_prompts_are_noticed_wherever_they_stand(requests: list[Request]) -> None:
    assert is_long(requests)


def test_short_ones_are_not() -> None:
    assert not is_long([asked(text=HALF), asked(messages=[{"role": "user", "content": "a"}]), asked(tokens=[1, 2])])
