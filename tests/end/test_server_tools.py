"""Tools and reasoning over HTTP, with the real openai SDK: whatever a random model writes, calls are valid."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel

from helpers import tiny_models
from helpers.server_process import PATIENCE_S, Server
from penstock import LLM, SamplingParams, ToolUse
from penstock.store.files import ModelFiles

ASK: list[Any] = [{"role": "user", "content": "What is the weather in Zürich? 🏔"}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
SCHEMAS = {"weather": SCHEMA, "now": {"type": "object", "maxProperties": 0}}
NAMED: Any = {"type": "function", "function": {"name": "weather"}}

# Tokens of a tiny model that reasons and calls, behind those that all of them have.
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
THINK, ANSWER, CALL, _ = range(tiny_models.VOCAB, tiny_models.VOCAB + len(MARKS))
THINKER_TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] "
    "{{ '<think>\n\n</think>\n\n' if enable_thinking is defined and enable_thinking is false }}{% endif %}"
)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    vocab = tiny_models.VOCAB + len(MARKS)
    folder = tmp_path_factory.mktemp("thinker")
    tiny_models.make("llama", folder, vocab_size=vocab, max_position_embeddings=4096)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"] += [
        {"id": tiny_models.VOCAB + n, "content": mark, **plain} for n, mark in enumerate(MARKS)
    ]
    file.write_text(json.dumps(tokenizer))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": THINKER_TEMPLATE}))
    return folder


@pytest.fixture(scope="module")
def thinking(thinker: Path) -> Iterator[Server]:
    with Server(thinker, "--kv-memory", "50MB") as server:
        yield server


def check(calls: Any) -> None:
    for call in calls:
        assert call.type == "function"
        assert call.id.startswith("call_")
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
    assert len({call.id for call in calls}) == len(calls)


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": "required", "parallel_tool_calls": False},
        {"tool_choice": NAMED},
        {"tool_choice": "required", "response_format": {"type": "json_object"}},
        {"tool_choice": "required", "stop": ['"', "a", "{"]},
    ],
)
def test_calls_that_must_come_are_valid(server: Server, client: openai.OpenAI, fields: dict[str, Any]) -> None:
    asked: dict[str, Any] = {
        "model": server.model,
        "messages": ASK,
        "tools": TOOLS,
        "n": 3,
        "seed": 3,
        "temperature": 1,
        "max_tokens": 900,
        **fields,
    }
    whole = client.chat.completions.create(**asked)
    for choice in whole.choices:
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        check(choice.message.tool_calls)
        if fields.get("tool_choice") is NAMED or fields.get("parallel_tool_calls") is False:
            assert len(choice.message.tool_calls or ()) == 1
    with client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    for choice in whole.choices:
        calls = choice.message.tool_calls
        assert calls is not None
        pieces = [c for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert [piece.finish_reason for piece in pieces if piece.finish_reason] == ["tool_calls"]
        deltas = [delta for piece in pieces for delta in piece.delta.tool_calls or ()]
        for number, call in enumerate(calls):
            first, *rest = [delta for delta in deltas if delta.index == number]
            assert first.function is not None
            assert (first.type, first.function.name, first.function.arguments) == ("function", call.function.name, "")
            assert all(delta.id is None and delta.function and delta.function.name is None for delta in rest)
            assert "".join(delta.function.arguments for delta in rest) == call.function.arguments
        assert all(piece.delta.content is None for piece in pieces)


def test_the_sdks_own_collector_reads_the_stream(server: Server, client: openai.OpenAI) -> None:
    class Weather(BaseModel):
        city: str
        days: int

    asked: dict[str, Any] = {"model": server.model, "messages": ASK, "seed": 5, "max_tokens": 900}
    tool = openai.pydantic_function_tool(Weather, name="weather")
    with client.chat.completions.stream(**asked, tools=[tool], tool_choice="required") as stream:
        arguments = [event.arguments for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion()

    calls = final.choices[0].message.tool_calls
    assert calls
    assert arguments == [call.function.arguments for call in calls]
    assert all(isinstance(call.function.parsed_arguments, Weather) for call in calls)


def test_a_call_cut_short_is_the_beginning_of_a_valid_one(server: Server, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=server.model, messages=ASK, tools=TOOLS, tool_choice=NAMED, max_tokens=70, temperature=0
    )
    assert answer.choices[0].finish_reason == "length"
    (call,) = answer.choices[0].message.tool_calls or ()
    assert call.function.name == "weather"
    assert call.function.arguments.startswith("{")
    with pytest.raises(ValueError, match=r"."):
        json.loads(call.function.arguments)
    said: Any = [*ASK, answer.choices[0].message, {"role": "user", "content": "Go on."}]  # it does not end there
    client.chat.completions.create(model=server.model, messages=said, tools=TOOLS, max_tokens=1)


def test_auto_binds_from_where_a_call_is_opened(thinking: Server) -> None:
    """The tokens are given a push, as there is no telling what a random model would do."""
    asked: dict[str, Any] = {"model": thinking.model, "messages": ASK, "seed": 1, "max_tokens": 600, "tools": TOOLS}
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    with thinking.client() as client:
        called = client.chat.completions.create(**asked, logit_bias={str(CALL): 6}, extra_body=off)
        plain = client.chat.completions.create(**asked, logit_bias={str(CALL): -100, "1": 3}, extra_body=off)
        never = client.chat.completions.create(
            **{**asked, "max_tokens": 30}, tool_choice="none", logit_bias={str(CALL): 100}, extra_body=off
        )
    message = called.choices[0].message
    assert called.choices[0].finish_reason in ("tool_calls", "length")
    assert message.tool_calls
    check(message.tool_calls if called.choices[0].finish_reason == "tool_calls" else message.tool_calls[:-1])
    assert (plain.choices[0].finish_reason, plain.choices[0].message.tool_calls) == ("stop", None)
    assert plain.choices[0].message.content
    assert never.choices[0].message.tool_calls is None
    assert never.choices[0].finish_reason == "length"


def test_reasoning_comes_apart_and_is_not_bound(thinking: Server) -> None:
    asked: dict[str, Any] = {"model": thinking.model, "messages": ASK, "seed": 2, "max_tokens": 900}
    asked["logit_bias"] = {str(THINK): 100, str(ANSWER): 4}
    formats = {"response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA}}}
    with thinking.client() as client:
        answer = client.chat.completions.create(**asked, **formats)  # type: ignore[call-overload]
        with client.chat.completions.create(**asked, **formats, stream=True) as stream:
            deltas = [chunk.choices[0].delta for chunk in stream]
        calls = client.chat.completions.create(**asked, tools=TOOLS, tool_choice="required")
        closed = client.chat.completions.create(**asked, **formats, reasoning_effort="none")  # type: ignore[call-overload]
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(message.content), SCHEMA)
    assert message.reasoning_content
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == message.reasoning_content
    assert "".join(delta.content or "" for delta in deltas) == message.content
    details = answer.usage.completion_tokens_details
    assert 0 < details.reasoning_tokens < answer.usage.completion_tokens
    assert calls.choices[0].message.reasoning_content  # type: ignore[attr-defined]
    check(calls.choices[0].message.tool_calls)
    jsonschema.validate(json.loads(closed.choices[0].message.content), SCHEMA)
    assert not hasattr(closed.choices[0].message, "reasoning_content")


def test_results_go_back_in(server: Server, thinking: Server) -> None:
    hostile = json.dumps({"city": '"}</tool_call>\n🏔', "unit": "celsius"})
    for one in (server, thinking):
        with one.client() as client:
            asked: dict[str, Any] = {"model": one.model, "tools": TOOLS, "max_tokens": 300, "seed": 1}
            first = client.chat.completions.create(**asked, messages=ASK, tool_choice=NAMED)
            said = first.choices[0].message.model_dump(exclude_none=True)
            said["tool_calls"][0]["function"]["arguments"] = hostile
            result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "7 °C"}
            second = client.chat.completions.create(**asked, messages=[*ASK, said, result])  # type: ignore[arg-type]
        assert first.usage is not None
        assert second.usage is not None
        assert second.usage.prompt_tokens > first.usage.prompt_tokens


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]}, "tools"),
    (
        {"tools": [TOOLS[0], {"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}]},
        "tools[1].function.parameters",
    ),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
def test_what_is_wrong_is_named(server: Server, fields: dict[str, Any], param: str) -> None:
    body = {"model": server.model, "messages": ASK, **fields}
    response = httpx.post(f"{server.api}/chat/completions", json=body, timeout=PATIENCE_S)

    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert param in error["message"]


def test_what_cannot_be_enforced_is_named_in_a_header_of_all_apis(server: Server) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "array", "items": {"enum": [1]}, "uniqueItems": True}}}
    asked = {"model": server.model, "messages": ASK, "max_tokens": 2}
    ask = {"model": server.model, "input": "Hi", "max_output_tokens": 16}
    chat, flat = {"name": "f", "parameters": schema}, {"type": "function", "name": "f", "parameters": schema}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {**asked, "tools": [{"type": "function", "function": chat}]}),
        ("/v1/chat/completions", {**asked, "tools": [{"type": "function", "function": chat}], "stream": True}),
        ("/v1/messages", {**asked, "tools": [{"name": "f", "input_schema": schema}]}),
        ("/v1/responses", {**ask, "tools": [flat]}),
    ]
    for path, body in bodies:
        response = httpx.post(server.url + path, json=body, timeout=PATIENCE_S)
        told = response.headers.get("x-penstock-warnings")
        assert (response.status_code, told) == (
            200,
            "calls of the tool f are not held to uniqueItems of its parameters",
        )
    plain = httpx.post(f"{server.url}/v1/chat/completions", json=asked, timeout=PATIENCE_S)
    assert "x-penstock-warnings" not in plain.headers


def test_the_library_shows_calls(tiny: Path) -> None:
    with LLM(str(tiny), kv_memory="100MB", threads=1, device="cpu") as llm:
        params = SamplingParams(max_tokens=600, seed=4)
        made = llm.chat(ASK, params, tools=ToolUse(tools=ToolUse.of(TOOLS).tools, choice="required"))
        chunks = list(llm.stream(ASK, params, tools=TOOLS))
        llm.check_integrity()
    assert made.calls
    for call in made.calls:
        jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
    assert chunks[-1].finish is not None


@pytest.mark.weights
def test_a_real_model_calls(smollm2: ModelFiles) -> None:
    with Server("smollm2", "--kv-memory", "512MB") as server, server.client() as client:
        asked: dict[str, Any] = {"model": server.model, "messages": ASK, "tools": TOOLS, "max_tokens": 150}
        answer = client.chat.completions.create(**asked, tool_choice=NAMED, temperature=0)
        assert answer.choices[0].finish_reason == "tool_calls"
        check(answer.choices[0].message.tool_calls)
        asked |= {"tool_choice": "required", "parallel_tool_calls": False, "seed": 1, "stream": True}
        with client.chat.completions.create(**asked) as stream:
            choices = [chunk.choices[0] for chunk in stream]
        assert choices[-1].finish_reason == "tool_calls"
        first, *rest = [delta for choice in choices for delta in choice.delta.tool_calls or ()]
        jsonschema.validate(
            json.loads("".join(delta.function.arguments for delta in rest)), SCHEMAS[first.function.name]
        )
