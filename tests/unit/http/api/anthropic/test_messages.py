from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from pydantic import TypeAdapter

from helpers.openai_samples import choice, completion
from helpers.schema_tables import assert_matches_schema
from penstock.deployment.protocol import PromptCount
from penstock.errors import InvalidRequest
from penstock.flow import CallDelta, Chunk, Constraint, FinishReason, Request, SamplingParams, Tool, ToolCall, ToolUse
from penstock.http.api.anthropic import messages, response_bodies
from penstock.http.api.anthropic.messages import MessageWriter
from penstock.http.api.client_field_names import client_field_names
from penstock.http.error_body import RenderedError
from penstock.http.parse.schema import parse
from penstock.http.sse import Event, NamedEvent

PROMPT = [5, 6, 7, 8]
SDK_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
EVENTS = {str(kind.__struct_config__.tag): kind for kind in messages.EVENTS}
WEATHER = {
    "name": "weather",
    "description": "Of a town.",
    "input_schema": {"type": "object", "properties": {"town": {"type": "string"}}},
}
USE = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"town": "Zürich"}}


def request(
    recommended: dict[str, float | int] | None = None, variables: frozenset[str] = frozenset(), **fields: Any
) -> Request:
    body = parse(
        messages.REQUEST,
        json.dumps({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], **fields}).encode(),
    )
    return messages.to_request(body, request_id="r", recommended=recommended or {}, variables=variables)


def written(events: list[Event]) -> list[dict[str, Any]]:
    """What is sent: named as it says, as the SDK expects it, and as /openapi.json says."""
    sent = []
    for event in events:
        assert isinstance(event, NamedEvent)
        data = json.loads(event.data)
        assert data["type"] == event.name
        assert_matches_schema(EVENTS[event.name], data)
        if event.name != "ping":  # which the SDK drops
            SDK_EVENT.validate_json(event.data)
        sent.append(data)
    return sent


def streamed(*chunks: Chunk, **finished: Any) -> list[dict[str, Any]]:
    write = MessageWriter(request_id="1", model="tiny")
    end = completion(PROMPT, choice(0, "".join(chunk.text for chunk in chunks), [1, 2], **finished), cached_tokens=3)
    events = [*write.first(0, 0, PROMPT, 3), *[event for one in chunks for event in write.chunk(0, one)]]
    return written([*events, *write.last([end])])


def full_response(**finished: Any) -> dict[str, Any]:
    text = finished.pop("text", "")
    data = MessageWriter(request_id="1", model="tiny").full_response(
        [completion(PROMPT, choice(0, text, [1, 2], **finished), cached_tokens=3)]
    )
    Message.model_validate_json(data, strict=True)
    body: dict[str, Any] = json.loads(data)
    assert_matches_schema(response_bodies.MessageAnswer, body)
    return body


# --- requests


def test_a_plain_request() -> None:
    made = request()

    assert made == Request(id="r", params=SamplingParams(max_tokens=9), messages=[{"role": "user", "content": "Hi"}])


def test_every_sampling_field_arrives() -> None:
    made = request({"temperature": 0.2, "top_p": 0.3}, temperature=0, top_k=4, stop_sequences=["a", "b"])

    assert made.params == SamplingParams(max_tokens=9, temperature=0, top_p=0.3, top_k=4, stop=("a", "b"))


BILLING = "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch=36ee5;"


@pytest.mark.parametrize(
    ("system", "wanted"),
    [
        ([BILLING, "You help.", "x"], "You help.\nx"),
        ([f"{BILLING}\nYou help."], "You help."),
        (f"{BILLING}\n\nYou help.\n", "You help.\n"),
        (["You help.", BILLING], "You help."),
        ([f"Never send {BILLING}"], f"Never send {BILLING}"),
        (["You help.", "", "x"], "You help.\n\nx"),
        ([BILLING], None),
        (BILLING, None),
    ],
)
def test_the_account_for_billing_never_reaches_the_prompt(system: str | list[str], wanted: str | None) -> None:
    """It differs in each request of Claude Code, and would be the first thing in the prompt."""
    blocks = system if isinstance(system, str) else [{"type": "text", "text": text} for text in system]
    told = [] if wanted is None else [{"role": "system", "content": wanted}]

    assert request(system=blocks).messages == [*told, {"role": "user", "content": "Hi"}]


def test_interleaved_thoughts_keep_their_order() -> None:
    think = [{"type": "thinking", "thinking": thought, "signature": ""} for thought in "abc"]
    results = [{"type": "tool_result", "tool_use_id": name, "content": "1"} for name in ("t1", "t2")]
    uses = [USE, {**USE, "id": "t2"}]
    made = request(
        messages=[
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [think[0], uses[0], think[1], {"type": "redacted_thinking", "data": "?"}]},
            {"role": "assistant", "content": [uses[1]]},
            {"role": "user", "content": results},
            {"role": "assistant", "content": [think[2], {"type": "text", "text": "So."}]},
            {"role": "user", "content": "And?"},
        ]
    )
    shown = [
        (message.get("reasoning_content"), [call["id"] for call in message.get("tool_calls", ())])
        for message in made.messages or ()
        if message["role"] == "assistant"
    ]
    assert shown == [("a", ["t1"]), ("b", ["t2"]), ("c", [])]
    assert made.warnings == ("redacted_thinking is left out: only the server that wrote it can read it",)


CLEAR = "clear_thinking_20251015"


@pytest.mark.parametrize(
    ("fields", "variables", "named"),
    [
        ({}, (), None),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, (), "output_config.effort"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, ("enable_thinking",), None),
        ({"context_management": {"edits": [{"type": CLEAR, "keep": "all"}]}}, (), None),
        ({"context_management": {"edits": [{"type": CLEAR, "keep": {"type": "all"}}]}}, (), None),
        ({"context_management": {"edits": [{"type": CLEAR}]}}, (), "context_management"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, (), "context_management"),
        ({"tools": [WEATHER, {**WEATHER, "name": "x", "defer_loading": True}]}, (), "defer_loading"),
    ],
)
def test_what_has_no_effect_is_told(fields: dict[str, Any], variables: tuple[str, ...], named: str | None) -> None:
    made = request(variables=frozenset(variables), **fields)

    assert [warning.partition(" ")[0] for warning in made.warnings] == ([] if named is None else [named])


@pytest.mark.parametrize(
    ("role", "content"),
    [("assistant", [{"type": "redacted_thinking", "data": "x"}]), ("assistant", []), ("system", [])],
)
def test_a_message_of_nothing_that_can_be_read(role: str, content: list[Any]) -> None:
    assert request(messages=[{"role": role, "content": content}]).messages == [{"role": role, "content": ""}]


def test_blocks_become_what_templates_know() -> None:
    made = request(
        system=[{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
        messages=[
            {"role": "user", "content": "Hi"},
            {"role": "user", "content": [{"type": "text", "text": "there"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""},
                    {"type": "text", "text": "I look."},
                    USE,
                    {**USE, "id": "t2", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]},
                    {"type": "tool_result", "tool_use_id": "t2", "content": "no town", "is_error": True},
                    {"type": "text", "text": "So?"},
                ],
            },
        ],
    )
    calls = [
        {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": {"town": "Zürich"}}},
        {"id": "t2", "type": "function", "function": {"name": "weather", "arguments": {}}},
    ]
    assert made.messages == [
        {"role": "system", "content": "one\ntwo"},
        {"role": "user", "content": "Hi\nthere"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "content": "rain", "tool_call_id": "t1", "name": "weather"},
        {"role": "tool", "content": "Error: no town", "tool_call_id": "t2", "name": "weather"},
        {"role": "user", "content": "So?"},
    ]


def test_the_answer_goes_on_from_a_final_message_of_the_assistants() -> None:
    made = request(messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Good"}])

    assert (made.continue_final_message, made.add_generation_prompt) == (True, False)


@pytest.mark.parametrize(
    ("turns", "param"),
    [
        (
            [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t9"}]}],
            "messages[0].content[0].tool_use_id",
        ),
        ([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [USE]}], "messages[1]"),
    ],
)
def test_calls_and_results_that_do_not_meet(turns: list[Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request(messages=turns)

    assert caught.value.param == param


@pytest.mark.parametrize(
    ("choose", "wanted"),
    [
        (None, {"choice": "auto"}),
        ({"type": "auto", "disable_parallel_tool_use": True}, {"choice": "auto", "parallel": False}),
        ({"type": "any"}, {"choice": "required"}),
        ({"type": "tool", "name": "weather"}, {"choice": "named", "name": "weather"}),
    ],
)
def test_tools(choose: Any, wanted: dict[str, Any]) -> None:
    tool = Tool(name="weather", description="Of a town.", parameters=WEATHER["input_schema"], strict=True)  # type: ignore[arg-type]

    assert request(tools=[{**WEATHER, "strict": True}], tool_choice=choose).tools == ToolUse(tools=(tool,), **wanted)


def test_tools_that_must_not_be_used_are_not_offered() -> None:
    assert request(tools=[WEATHER], tool_choice={"type": "none"}).tools is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [{**WEATHER, "name": "a b"}]}, "tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
    ],
)
def test_tools_that_cannot_be(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request(**fields)

    assert caught.value.param == param


def test_a_schema_for_the_answer() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    made = request(output_config={"format": {"type": "json_schema", "schema": schema}})

    assert made.params.constraint == Constraint.json_schema(schema)


SWITCH, BUDGET = frozenset({"enable_thinking"}), frozenset({"thinking_budget"})
WITHIN = {"thinking": {"type": "enabled", "budget_tokens": 2000}}


@pytest.mark.parametrize(
    ("fields", "variables", "effort", "arguments"),
    [
        ({}, SWITCH, None, {}),
        ({"thinking": {"type": "disabled"}}, SWITCH, "none", {}),
        ({"thinking": {"type": "disabled"}}, frozenset(), "none", {}),
        ({"thinking": {"type": "adaptive"}}, SWITCH, "medium", {}),
        ({"thinking": {"type": "adaptive"}}, frozenset(), None, {}),
        ({"output_config": {"effort": "high"}}, frozenset(), "high", {}),
        ({"output_config": {"effort": "high"}, "thinking": {"type": "adaptive"}}, SWITCH, "high", {}),
        (WITHIN, frozenset(), None, {}),
        (WITHIN, SWITCH, "medium", {}),
        (WITHIN, BUDGET, None, {"thinking_budget": 2000}),
        (WITHIN, BUDGET | SWITCH, "medium", {"thinking_budget": 2000}),
    ],
)
def test_thinking(fields: dict[str, Any], variables: frozenset[str], effort: str | None, arguments: Any) -> None:
    made = request(variables=variables, **fields)

    assert (made.reasoning_effort, made.template_arguments) == (effort, arguments)
    assert made.thinking_budget == (2000 if fields == WITHIN else None)


@pytest.mark.parametrize(
    ("param", "fields", "wanted"),
    [
        ("constraint.json_schema", {}, "output_config.format.schema"),
        ("tools[3].function.parameters", {}, "tools[3].input_schema"),
        ("reasoning_effort", {"thinking": {"type": "disabled"}}, "thinking"),
        ("reasoning_effort", {"output_config": {"effort": "max"}}, "output_config.effort"),
        ("continue_final_message", {}, "messages"),
        ("max_tokens", {}, "max_tokens"),
    ],
)
def test_fields_have_the_names_the_client_knows(param: str, fields: dict[str, Any], wanted: str) -> None:
    body = parse(
        messages.COUNT, json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}], **fields}).encode()
    )

    with pytest.raises(InvalidRequest) as caught, client_field_names(messages.client_names(body)):
        raise InvalidRequest(f"{param} is wrong", param=param)

    assert (caught.value.param, caught.value.message) == (wanted, f"{wanted} is wrong")


# --- whole answers


def test_a_whole_answer() -> None:
    assert full_response(text="Hello", finish=FinishReason.END) == {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "model": "tiny",
        "content": [{"type": "text", "text": "Hello", "citations": None}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 1,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 3,
            "output_tokens": 2,
        },
    }


@pytest.mark.parametrize(
    ("finish", "stop", "wanted"),
    [
        (FinishReason.END, None, ("end_turn", None)),
        (FinishReason.COMPLETE, None, ("end_turn", None)),
        (FinishReason.STOP_STRING, "###", ("stop_sequence", "###")),
        (FinishReason.LENGTH, None, ("max_tokens", None)),
        (FinishReason.CONTEXT, None, ("max_tokens", None)),
    ],
)
def test_why_it_ended(finish: FinishReason, stop: str | None, wanted: tuple[str, str | None]) -> None:
    body = full_response(text="a", finish=finish, stop=stop)

    assert (body["stop_reason"], body["stop_sequence"]) == wanted


def test_an_answer_with_thoughts_and_calls() -> None:
    calls = (
        ToolCall(id="c1", name="f", arguments='{"a": 1.50, "ü": "\\u00fc"}'),
        ToolCall(id="c2", name="g", arguments="{}"),
    )
    body = full_response(text="So.", finish=FinishReason.END, reasoning="hm", calls=calls)

    assert body["stop_reason"] == "tool_use"
    assert body["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "So.", "citations": None},
        {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1.5, "ü": "ü"}},
        {"type": "tool_use", "id": "c2", "name": "g", "input": {}},
    ]


def test_a_call_that_was_cut_short() -> None:
    body = full_response(finish=FinishReason.LENGTH, calls=(ToolCall(id="c1", name="f", arguments='{"a": 1'),))

    assert body["stop_reason"] == "max_tokens"
    assert body["content"] == [{"type": "tool_use", "id": "c1", "name": "f", "input": {}}]


def test_an_answer_that_says_nothing() -> None:
    assert full_response(finish=FinishReason.END)["content"] == []


# --- streams


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def test_a_stream_of_text() -> None:
    events = streamed(Chunk(0, "He", [1]), Chunk(0, "", [2]), Chunk(0, "llo", [3]), finish=FinishReason.LENGTH)

    assert kinds(events) == [
        "message_start", "ping", "content_block_start", "content_block_delta", "content_block_delta",
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    start = events[0]["message"]
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert (start["usage"]["input_tokens"], start["usage"]["cache_read_input_tokens"]) == (1, 3)
    assert [event["delta"] for event in events[3:5]] == [
        {"type": "text_delta", "text": "He"},
        {"type": "text_delta", "text": "llo"},
    ]
    assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 2


def test_each_kind_of_content_is_a_block_of_its_own() -> None:
    second = CallDelta(index=1, id="c2", name="g", arguments="{}")
    events = streamed(
        Chunk(0, "", [1], reasoning="h"),
        Chunk(0, "So", [2], reasoning="m"),
        Chunk(0, ".", [3], calls=(CallDelta(index=0, id="c1", name="f"), CallDelta(index=0, arguments='{"a"'))),
        Chunk(0, "", [4], calls=(CallDelta(index=0, arguments=": 1}"), second)),
        finish=FinishReason.END,
        calls=(ToolCall(id="c1", name="f", arguments='{"a": 1}'), ToolCall(id="c2", name="g", arguments="{}")),
    )
    blocks: dict[int, Any] = {}
    closed = 0
    for event in events[2:-2]:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(blocks) == closed
                blocks[event["index"]] = [event["content_block"], ""]
            case "content_block_delta":
                assert event["index"] == len(blocks) - 1
                blocks[event["index"]][1] += "".join(value for name, value in event["delta"].items() if name != "type")
            case "content_block_stop":
                assert event["index"] == closed
                closed += 1
    assert closed == len(blocks)
    assert [(block["type"], text) for block, text in blocks.values()] == [
        ("thinking", "hm"),
        ("text", "So."),
        ("tool_use", '{"a": 1}'),
        ("tool_use", "{}"),
    ]
    assert blocks[2][0] == {"type": "tool_use", "id": "c1", "name": "f", "input": {}}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_a_stream_that_says_nothing() -> None:
    events = streamed(Chunk(0, "", [1], finish=FinishReason.END), finish=FinishReason.END)
    assert kinds(events) == ["message_start", "ping", "message_delta", "message_stop"]


def test_a_stream_that_breaks_off() -> None:
    told = RenderedError(503, b'{"type":"error"}', "gone")

    assert MessageWriter(request_id="1", model="m").error_events(told) == [NamedEvent("error", told.body)]


def test_counted() -> None:
    data = messages.encode_token_count(PromptCount(3))

    assert MessageTokensCount.model_validate_json(data).input_tokens == 3
