from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.errors import InvalidRequest
from penstock.flow import Constraint, Message, Request, SamplingParams, Tool, ToolUse
from penstock.intake.openai.responses import items
from penstock.intake.openai.responses.schemas import ResponseRequest
from penstock.intake.parse import parse
from penstock.intake.problems import called

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": "ü"}'}
TOOL = {"type": "function", "name": "f", "description": "it", "parameters": {"type": "object"}, "strict": True}


def request(
    before: list[Message] | None = None, recommended: dict[str, float | int] | None = None, **fields: Any
) -> Request:
    body = parse(ResponseRequest, json.dumps({"model": "m", "input": "Hi", **fields}).encode())
    said = items.conversation(body, before or [])
    return items.to_request(body, said, request_id="r", recommended=recommended or {})


def test_a_plain_request_runs_to_the_end_of_the_context() -> None:
    assert request() == Request(
        id="r", params=SamplingParams(max_tokens=None), messages=[{"role": "user", "content": "Hi"}]
    )


def test_sampling() -> None:
    made = request(recommended={"temperature": 0.2, "top_p": 0.3, "top_k": 4}, temperature=0, max_output_tokens=7)

    assert made.params == SamplingParams(max_tokens=7, temperature=0, top_p=0.3, top_k=4)


def test_items_become_what_templates_know() -> None:
    made = request(
        instructions="Be brief.",
        input=[
            {"role": "developer", "content": "And kind."},
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            CALL,
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "3"}]},
        ],
    )
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": "ü"}}}
    assert made.messages == [
        {"role": "system", "content": "Be brief.\nAnd kind."},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "content": "3", "tool_call_id": "c1", "name": "f"},
    ]


def test_an_earlier_conversation_comes_first_and_instructions_before_it() -> None:
    before: list[Message] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]

    assert request(before, instructions="Be brief.").messages == [
        {"role": "system", "content": "Be brief."},
        *before,
        {"role": "user", "content": "Hi"},
    ]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({**CALL, "arguments": "{"}, "input[0].arguments"),
        ({**CALL, "arguments": "[]"}, "input[0].arguments"),
        ({**CALL, "arguments": '{"a":' * 128 + "{}" + "}" * 128}, "input[0].arguments"),
        ({**CALL, "arguments": '{"a":' * 5000}, "input[0].arguments"),
        ({**CALL, "arguments": '{"a": "\\ud800"}'}, "input[0].arguments"),
        ({"type": "function_call_output", "call_id": "c9", "output": ""}, "input[0].call_id"),
    ],
)
def test_items_that_cannot_be(item: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request(input=[item])

    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, {"choice": "auto"}),
        ({"parallel_tool_calls": False}, {"choice": "auto", "parallel": False}),
        ({"tool_choice": "auto"}, {"choice": "auto"}),
        ({"tool_choice": "required"}, {"choice": "required"}),
        ({"tool_choice": {"type": "function", "name": "f"}}, {"choice": "named", "name": "f"}),
    ],
)
def test_tools(fields: dict[str, Any], wanted: dict[str, Any]) -> None:
    tool = Tool(name="f", description="it", parameters={"type": "object"}, strict=True)

    assert request(tools=[TOOL], **fields).tools == ToolUse(tools=(tool,), **wanted)


@pytest.mark.parametrize("fields", [{"tool_choice": "none", "tools": [TOOL]}, {"tools": []}, {}])
def test_no_tools(fields: dict[str, Any]) -> None:
    assert request(**fields).tools is None


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, Constraint.json_object()),
        ({"type": "json_schema", "name": "n", "schema": {"type": "array"}}, Constraint.json_schema({"type": "array"})),
    ],
)
def test_the_form_of_the_answer(form: dict[str, Any], wanted: Constraint | None) -> None:
    assert request(text={"format": form}).params.constraint == wanted


def test_effort() -> None:
    assert request(reasoning={"effort": "low"}).reasoning_effort == "low"


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ("messages", "input"),
        ("max_tokens", "max_output_tokens"),
        ("reasoning_effort", "reasoning.effort"),
        ("constraint.json_schema", "text.format.schema"),
        ("constraint.json_object", "text.format"),
        ("tools[0].function.parameters", "tools[0].parameters"),
        ("tools", "tools"),
    ],
)
def test_fields_have_the_names_the_client_knows(inside: str, outside: str) -> None:
    with pytest.raises(InvalidRequest) as caught, called(items.NAMES):
        raise InvalidRequest(f"{inside} is wrong", param=inside)

    assert (caught.value.param, caught.value.message) == (outside, f"{outside} is wrong")
