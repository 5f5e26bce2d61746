from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.errors import InvalidRequest
from penstock.flow import Constraint, Message, Request, SamplingParams, Tool, ToolUse
from penstock.http.api.client_field_names import client_field_names
from penstock.http.api.responses import encrypted_reasoning, requests
from penstock.http.api.responses.schemas import ResponseRequest
from penstock.http.parse.schema import parse

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": "ü"}'}
TOOL = {"type": "function", "name": "f", "description": "it", "parameters": {"type": "object"}, "strict": True}


def request(
    before: list[Message] | None = None, recommended: dict[str, float | int] | None = None, **fields: Any
) -> Request:
    body = parse(ResponseRequest, json.dumps({"model": "m", "input": "Hi", **fields}).encode())
    said = requests.conversation(body, before or [])
    return requests.to_request(body, said, request_id="r", recommended=recommended or {})


def test_a_plain_request_runs_to_the_end_of_the_context() -> None:
    assert request() == Request(
        id="r", params=SamplingParams(max_tokens=None), messages=[{"role": "user", "content": "Hi"}]
    )


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"presence_penalty": 0, "frequency_penalty": 0.0, "top_k": -1}, {"top_k": 0}),
        ({"presence_penalty": 1.5, "frequency_penalty": -1}, {"presence_penalty": 1.5, "frequency_penalty": -1}),
        ({"top_k": 7}, {"top_k": 7}),
        ({"seed": 3, "stop": "."}, {"seed": 3, "stop": (".",)}),
        ({"ignore_eos": True, "stop": [".", "!"]}, {"ignore_eos": True, "stop": (".", "!")}),
        ({"ignore_eos": False, "stop": None, "seed": None}, {}),
        ({"speculation": False}, {"speculation": False}),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": 0}),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 3}, {"logprobs": 3}),
        ({"include": ["reasoning.encrypted_content"]}, {}),
    ],
)
def test_what_decides_the_draw(fields: dict[str, Any], wanted: dict[str, Any]) -> None:
    made = request(recommended={"top_k": 4}, **fields)

    assert made.params == SamplingParams(**({"max_tokens": None, "top_k": 4} | wanted))


def test_variables_of_the_template() -> None:
    assert request(chat_template_kwargs={"enable_thinking": False}).template_arguments == {"enable_thinking": False}


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


@pytest.mark.parametrize("arguments", ["", "{", "[]", '{"a":' * 5000, '{"a": "\\ud800"}', '{"town": "Zür'])
def test_arguments_that_were_cut_short_stay_as_they_are(arguments: str) -> None:
    (message,) = request(input=[{**CALL, "arguments": arguments}]).messages or ()

    assert message["tool_calls"][0]["function"]["arguments"] == arguments


SHELL = {"type": "local_shell_call", "call_id": "s1", "status": "completed", "action": {"command": ["ls"]}}
PATCH = {
    "type": "custom_tool_call",
    "call_id": "p1",
    "name": "apply_patch",
    "input": "*** Begin",
    "status": "completed",
}
RESULT = {"type": "function_call_output", "output": "ok"}


def test_what_agents_did_elsewhere_is_shown_as_calls() -> None:
    made = request(
        input=[
            SHELL,
            PATCH,
            {**CALL, "namespace": "mcp"},
            {**CALL, "call_id": "c2"},
            {"type": "local_shell_call_output", "id": "s1", "output": "a.py"},
            {"type": "custom_tool_call_output", "call_id": "p1", "output": [{"type": "input_text", "text": "done"}]},
            {**RESULT, "call_id": "c1"},
            {**RESULT, "call_id": "c2"},
        ]
    )
    messages = made.messages or []
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in messages[0]["tool_calls"]]
    assert calls == [
        ("local_shell", {"command": ["ls"]}),
        ("apply_patch", {"input": "*** Begin"}),
        ("mcp.f", {"a": "ü"}),
        ("f", {"a": "ü"}),
    ]
    shown = [(message["name"], message["content"]) for message in messages[1:]]
    assert shown == [("local_shell", "a.py"), ("apply_patch", "done"), ("mcp.f", "ok"), ("f", "ok")]
    assert made.warnings == ()


def test_what_cannot_be_shown_is_left_out_with_a_warning() -> None:
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "a"},
    }
    image = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "x"}
    made = request(
        input=[{"role": "user", "content": "Hi"}, search, search, image, {"role": "assistant", "content": "So."}]
    )

    assert made.messages == [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "So."}]
    assert made.warnings == (
        "items of type image_generation_call are left out",
        "items of type web_search_call are left out",
    )
    with pytest.raises(InvalidRequest, match="no item that can be shown") as caught:
        request(input=[search])
    assert caught.value.param == "input"


def test_interleaved_thoughts_keep_their_order() -> None:
    """However they come back: in the open, packed, or unreadable because another server packed them."""
    packed = encrypted_reasoning.pack("second 🦙")
    made = request(
        instructions="Be brief.",
        input=[
            {"role": "user", "content": "Hi"},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "first"}]},
            {"role": "assistant", "content": "I look."},
            {"type": "reasoning", "summary": [], "content": None, "encrypted_content": packed},
            CALL,
            {**RESULT, "call_id": "c1"},
            {"type": "reasoning", "summary": [], "encrypted_content": "gAAAAABo"},
            {"type": "reasoning", "summary": [], "encrypted_content": None},
            {"role": "assistant", "content": "So."},
        ],
    )
    shown = [
        (message.get("reasoning_content"), message["content"])
        for message in made.messages or ()
        if message["role"] == "assistant"
    ]
    assert shown == [("first", "I look."), ("second 🦙", ""), (None, "So.")]
    assert made.warnings == ("encrypted_content is left out: only the server that wrote it can read it",)


@pytest.mark.parametrize("packed", ["", "x", "penstock-1:", "penstock-1:%%%", "penstock-1:/w==", "penstock-2:aG0="])
def test_what_was_not_packed_here(packed: str) -> None:
    assert not encrypted_reasoning.unpack(packed)


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "function_call_output", "call_id": "c9", "output": ""}, "input[0].call_id"),
        ({"type": "custom_tool_call_output", "call_id": "c9", "output": ""}, "input[0].call_id"),
        ({"type": "local_shell_call_output", "id": "c9", "output": ""}, "input[0].id"),
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


DROPPED = [
    {"type": kind, "name": "x", "tools": []} for kind in ("custom", "namespace", "web_search", "image_generation")
]


def test_tools_that_cannot_be_called_are_left_out_with_a_warning() -> None:
    made = request(tools=[*DROPPED, TOOL, {**DROPPED[0], "name": "y"}, {**TOOL, "name": "g", "defer_loading": True}])

    assert made.tools is not None
    assert [tool.name for tool in made.tools.tools] == ["f", "g"]
    assert made.warnings == (
        "defer_loading has no effect: all tools are shown to the model",
        *[f"tools of type {kind} are left out" for kind in ("custom", "image_generation", "namespace", "web_search")],
    )
    assert request(tools=DROPPED).tools is None


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"client_metadata": {"x-codex-installation-id": "1"}}, "client_metadata"),
        ({"client_metadata": {}}, None),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"verbosity": "medium"}}, None),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"reasoning": {"generate_summary": "concise"}}, "reasoning.summary"),
        ({"reasoning": {"summary": "auto"}}, None),
    ],
)
def test_what_has_no_effect_is_told(fields: dict[str, Any], named: str | None) -> None:
    warnings = request(**fields).warnings

    assert [warning.partition(" ")[0] for warning in warnings] == ([] if named is None else [named])


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
    with pytest.raises(InvalidRequest) as caught, client_field_names(requests.CLIENT_NAMES):
        raise InvalidRequest(f"{inside} is wrong", param=inside)

    assert (caught.value.param, caught.value.message) == (outside, f"{outside} is wrong")
