from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.deployment.local_model import LONG_TEXT, LocalModel, is_long
from penstock.deployment.protocol import ModelCard
from penstock.deployment.replica_set import ReplicaSet
from penstock.flow import Constraint, Request, SamplingParams, Tool, ToolUse

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


@pytest.mark.parametrize(
    "fields",
    [
        {"params": SamplingParams(constraint=Constraint.json_object())},
        {"tools": ToolUse(tools=(Tool(name="f", parameters={}),))},
        {"thinking_budget": 0},  # the end of the reasoning is forced, too
        {"thinking_budget": 9},
    ],
)
def test_what_may_have_to_be_compiled_is_accepted_off_the_loop(fields: dict[str, Any]) -> None:
    class Pipeline:
        def render(self, request: Request) -> str:
            return threading.current_thread().name

        def encode(self, request: Request, text: str) -> list[int]:
            return []

        def activate(self, request: Request, text: str, tokens: list[int]) -> tuple[str, str]:
            return text, threading.current_thread().name

    nothing = cast(Any, None)
    replicas = ReplicaSet(nothing)
    model = LocalModel(ModelCard(name=""), nothing, cast(Any, Pipeline()), nothing, replicas, max_waiting=1)
    ((prompting, constraining),) = cast(
        Any, asyncio.run(model._accept([Request(**{"id": "", "params": SamplingParams(), "messages": []} | fields)]))
    )
    assert prompting.startswith("asyncio")  # those that wait for others' constraints have shown that they fit
    assert constraining.startswith("constrained")


def test_the_card_says_what_the_engine_decided() -> None:
    """Not what was asked for, nor where a head is on the server."""
    nothing = cast(Any, None)
    pipeline = SimpleNamespace(context=None)
    card = ModelCard(name="", drafts="auto")
    model = LocalModel(card, nothing, cast(Any, pipeline), nothing, ReplicaSet(nothing), max_waiting=1)
    for said, shown in (("off", "off"), ("lookup", "lookup"), ("eagle:/models/head", "eagle")):
        model._adopt_facts({"context": 64, "weights": "int4", "speculation": said})
        assert (model.card.drafts, model.card.weights, model.card.context) == (shown, "int4", 64)
    assert pipeline.context == 64
