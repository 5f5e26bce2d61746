"""The real anthropic SDK against a real server: what it gets is what the library gives for the same model."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import jsonschema_rs
import pytest

from helpers.server_process import PATIENCE_S, Server, until
from helpers.tiny_models import ENDLESS_TOKENS
from penstock import LLM, SamplingParams

TALK: list[Any] = [{"role": "user", "content": "Where is Zürich? 🏔"}]
SYSTEM = "be brief"
# The SDK has no argument for the temperature; its API has.
COLD: dict[str, Any] = {"extra_body": {"temperature": 0}}
GREEDY: dict[str, Any] = {"max_tokens": 24, **COLD}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"town": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["town", "days"],
    "additionalProperties": False,
}
TOOL: Any = {"name": "weather", "description": "Of a town.", "input_schema": SCHEMA}
NOTED: Any = {"name": "note", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}}
# Nothing that ends the answer by chance is allowed for longer than any test takes.
ENDLESS: Any = {
    "format": {"type": "json_schema", "schema": {"type": "array", "items": {"type": "integer"}, "minItems": 20_000}}
}
CALLED: dict[str, Any] = {"tools": [TOOL, NOTED], "max_tokens": 600, **COLD}


def options(server: Server, **more: Any) -> dict[str, Any]:
    return {"base_url": server.url, "api_key": "none", "max_retries": 0, "timeout": PATIENCE_S, **more}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(**options(server)) as client:
        yield client


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content)


def test_a_message(server: Server, client: anthropic.Anthropic, llm: LLM) -> None:
    message = client.messages.create(model=server.model, system=SYSTEM, messages=TALK, **GREEDY)
    wanted = llm.chat([{"role": "system", "content": SYSTEM}, *TALK], SamplingParams(temperature=0.0, max_tokens=24))
    assert text_of(message) == wanted.text
    assert (message.type, message.role, message.model) == ("message", "assistant", server.model)
    assert message.id.startswith("msg_")
    assert message.stop_reason == {"length": "max_tokens", "end": "end_turn"}[wanted.finish]
    usage = message.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == len(wanted.prompt_tokens)
    assert usage.output_tokens == len(wanted.tokens)
    assert message._request_id
    again = client.messages.create(model=server.model, system=SYSTEM, messages=TALK, **GREEDY).usage
    assert again.cache_read_input_tokens
    assert again.input_tokens + again.cache_read_input_tokens == len(wanted.prompt_tokens)


def test_tokens_are_counted_as_they_are_used(server: Server, client: anthropic.Anthropic) -> None:
    for more in ({}, {"system": SYSTEM}, {"tools": [TOOL]}):
        counted = client.messages.count_tokens(model=server.model, messages=TALK, **more)
        usage = client.messages.create(model=server.model, messages=TALK, max_tokens=1, **more).usage
        assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_stream_is_the_whole_in_pieces(server: Server, client: anthropic.Anthropic) -> None:
    request: dict[str, Any] = {"model": server.model, "messages": TALK, **GREEDY}
    whole = client.messages.create(**request)
    with client.messages.stream(**request) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(pieces) == text_of(final) == text_of(whole)
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    with client.messages.create(**request, stream=True) as events:
        kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


def test_the_events_go_by_their_names(server: Server) -> None:
    body = {"model": server.model, "messages": TALK, "stream": True, "max_tokens": 9}
    answer = httpx.post(f"{server.api}/messages", json=body, timeout=PATIENCE_S)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, rest = answer.text.split("\n\n")
    assert rest == ""
    for event in events:
        name, data = event.split("\n")
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]
    assert events[1].startswith("event: ping\n")


def test_async(server: Server, client: anthropic.Anthropic) -> None:
    request: dict[str, Any] = {"model": server.model, "messages": TALK, **GREEDY}
    wanted = text_of(client.messages.create(**request))

    async def ask() -> None:
        async with anthropic.AsyncAnthropic(**options(server)) as client:
            stream, *messages = await asyncio.gather(
                client.messages.create(**request, stream=True), *[client.messages.create(**request) for _ in range(4)]
            )
            assert [text_of(message) for message in messages] == [wanted] * 4
            deltas = [event.delta async for event in stream if event.type == "content_block_delta"]
            assert "".join(delta.text for delta in deltas if delta.type == "text_delta") == wanted

    asyncio.run(ask())


def test_stop_sequences(server: Server, client: anthropic.Anthropic) -> None:
    request: dict[str, Any] = {"model": server.model, "messages": TALK, **GREEDY}
    text = text_of(client.messages.create(**request))
    stop = text[6:8]
    message = client.messages.create(**request, stop_sequences=["never there", stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert text_of(message) == text[: text.index(stop)]


def test_the_answer_goes_on_from_the_last_message(server: Server, client: anthropic.Anthropic, llm: LLM) -> None:
    talk = [*TALK, {"role": "assistant", "content": "In the"}]
    message = client.messages.create(model=server.model, messages=talk, **GREEDY)
    wanted = llm.chat(
        talk, SamplingParams(temperature=0.0, max_tokens=24), continue_final_message=True, add_generation_prompt=False
    )
    assert text_of(message) == wanted.text


def test_a_tool_is_used_and_its_result_comes_back(server: Server, client: anthropic.Anthropic) -> None:
    choice: Any = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    talk: list[Any] = list(TALK)
    for _ in range(2):
        message = client.messages.create(model=server.model, messages=talk, tool_choice=choice, **CALLED)
        assert message.stop_reason == "tool_use"
        (use,) = [block for block in message.content if block.type == "tool_use"]
        assert use.name == "weather"
        jsonschema_rs.validate(SCHEMA, use.input)
        result = {"type": "tool_result", "tool_use_id": use.id, "content": 'rain, "ü" \\ 🌧'}
        talk += [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    final = client.messages.create(
        model=server.model, messages=talk, tools=[TOOL], tool_choice={"type": "none"}, **GREEDY
    )
    assert final.stop_reason in ("end_turn", "max_tokens")
    assert {block.type for block in final.content} <= {"text"}


def test_the_tool_runner_of_the_sdk(server: Server, client: anthropic.Anthropic) -> None:
    """It asks for a thread, is told that there are none, and goes on with the whole conversation by itself."""
    asked: list[str] = []

    def weather(town: str, days: int) -> str:
        asked.append(town)
        return f"rain for {days} days"

    tool = anthropic.beta_tool(weather, name="weather", description="Of a town.", input_schema=SCHEMA)
    choice: Any = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    runner = client.beta.messages.tool_runner(
        model=server.model, max_tokens=600, messages=TALK, tools=[tool], tool_choice=choice, max_iterations=2, **COLD
    )
    replies = list(runner)
    assert [reply.stop_reason for reply in replies] == ["tool_use", "tool_use"]
    assert len(asked) == 2
    first, second = [reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0) for reply in replies]
    assert second > first


def test_streamed_tool_use(server: Server, client: anthropic.Anthropic) -> None:
    raw: dict[int, str] = {}
    with client.messages.stream(model=server.model, messages=TALK, tool_choice={"type": "any"}, **CALLED) as stream:
        for event in stream:
            if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                raw[event.index] = raw.get(event.index, "") + event.delta.partial_json
        final = stream.get_final_message()
    blocks = dict(enumerate(final.content))
    assert raw
    for index, text in raw.items():
        block = blocks[index]
        assert block.type == "tool_use"
        if final.stop_reason == "tool_use":
            assert json.loads(text) == block.input
            jsonschema_rs.validate(SCHEMA if block.name == "weather" else NOTED["input_schema"], block.input)


def test_an_answer_of_a_schema(server: Server, client: anthropic.Anthropic) -> None:
    message = client.messages.create(
        model=server.model,
        messages=TALK,
        max_tokens=600,
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
        **COLD,
    )
    assert message.stop_reason == "end_turn"
    jsonschema_rs.validate(SCHEMA, json.loads(text_of(message)))


IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
NO_SCHEMA = {"type": "object", "properties": {"a": {"not": {}}}}
WRONG: list[tuple[type[anthropic.APIStatusError], str, dict[str, Any]]] = [
    (anthropic.NotFoundError, "model", {"model": "claude"}),
    (anthropic.BadRequestError, "max_tokens", {"max_tokens": 0}),
    (anthropic.BadRequestError, "max_tokens", {"max_tokens": 1_000_000}),
    (anthropic.BadRequestError, "max_tokens", {"max_tokens": 1_000_000, "stream": True}),
    (anthropic.BadRequestError, "temperature", {"extra_body": {"temperature": 1.5}}),
    (anthropic.BadRequestError, "temprature", {"extra_body": {"temprature": 1}}),
    (anthropic.BadRequestError, "messages[0].role", {"messages": [{"role": "robot", "content": ""}]}),
    (anthropic.BadRequestError, "messages[0].content[0].type", {"messages": [{"role": "user", "content": [IMAGE]}]}),
    (anthropic.BadRequestError, "tools[0].type", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    (
        anthropic.BadRequestError,
        "tools[0].input_schema",
        {"tools": [{**TOOL, "strict": True, "input_schema": NO_SCHEMA}]},
    ),
    (anthropic.BadRequestError, "tool_choice", {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}),
    (
        anthropic.BadRequestError,
        "output_config.format.schema",
        {"output_config": {"format": {"type": "json_schema", "schema": NO_SCHEMA}}},
    ),
    (anthropic.BadRequestError, "output_config.effort", {"output_config": {"effort": "high"}}),
    (anthropic.BadRequestError, "thinking.budget_tokens", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
]


@pytest.mark.parametrize(("kind", "field", "wrong"), WRONG, ids=[str(row[2])[:40] for row in WRONG])
def test_errors(
    server: Server, client: anthropic.Anthropic, kind: type[anthropic.APIStatusError], field: str, wrong: dict[str, Any]
) -> None:
    with pytest.raises(kind) as caught:
        client.messages.create(**{"model": server.model, "max_tokens": 4, "messages": TALK, **wrong})
    error = caught.value
    body: Any = error.body
    assert body["type"] == "error"
    assert field in body["error"]["message"]
    assert body["error"]["type"] == ("not_found_error" if kind is anthropic.NotFoundError else "invalid_request_error")
    assert body["request_id"] == error.request_id


def test_neutral_values_and_hints_are_taken(server: Server, client: anthropic.Anthropic) -> None:
    mark: Any = {"type": "ephemeral"}
    client.messages.create(
        model=server.model,
        max_tokens=1,
        system=[{"type": "text", "text": "a", "cache_control": mark}],
        messages=[{"role": "user", "content": [{"type": "text", "text": "b", "cache_control": mark}]}],
        thinking={"type": "disabled"},
        metadata={"user_id": "me"},
        service_tier="auto",
        extra_headers={"anthropic-version": "2023-06-01", "anthropic-beta": "some-beta"},
    )


@pytest.mark.parametrize("stream", [True, False])
def test_hanging_up_cancels(server: Server, stream: bool) -> None:
    """In the engine: nothing runs and no block is held soon after, though the answer would have gone on for long."""
    until(server.idle, "rest before")
    before = server.metrics()
    endless = {
        "model": server.model,
        "messages": TALK,
        "max_tokens": ENDLESS_TOKENS,
        "stream": stream,
        "output_config": ENDLESS,
    }

    async def ask() -> None:
        async with anthropic.AsyncAnthropic(**options(server)) as client:
            asking = asyncio.ensure_future(client.messages.create(**endless))
            if stream:
                events = await asking
                await anext(aiter(events))
                await events.close()
                return
            while not await asyncio.to_thread(server.metric, "num_requests_running"):
                await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(asyncio.wait_for(ask(), PATIENCE_S))
    until(server.idle, "the end of a request whose client has gone")
    cancelled = "penstock_requests_total{finish=cancelled}"
    assert server.metrics().get(cancelled, 0) == before.get(cancelled, 0) + 1
