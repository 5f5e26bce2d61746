"""The real openai SDK's `client.responses` against a real server."""

import asyncio
import json
from typing import Any

import httpx
import jsonschema_rs
import openai
import pytest

from helpers.server_process import PATIENCE_S, Server, until
from helpers.tiny_models import ENDLESS_TOKENS
from penstock import LLM, SamplingParams

ASKED = "Where is Zürich? 🏔"
COLD: dict[str, Any] = {"temperature": 0}
GREEDY: dict[str, Any] = {"max_output_tokens": 24, **COLD}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"town": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["town", "days"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "name": "weather", "description": "Of a town.", "parameters": SCHEMA, "strict": True}
FORM: Any = {"format": {"type": "json_schema", "name": "weather", "schema": SCHEMA, "strict": True}}


# Nothing that ends the answer by chance is allowed for longer than any test takes.
LONG = {"type": "array", "items": {"type": "integer"}, "minItems": 20_000}
ENDLESS: Any = {"format": {"type": "json_schema", "name": "long", "schema": LONG}}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_a_response(server: Server, client: openai.OpenAI, llm: LLM) -> None:
    response = client.responses.create(model=server.model, input=ASKED, instructions="be brief", **GREEDY)
    wanted = llm.chat(
        [{"role": "system", "content": "be brief"}, user(ASKED)], SamplingParams(temperature=0.0, max_tokens=24)
    )
    assert response.output_text == wanted.text
    assert response.status == {"length": "incomplete", "end": "completed"}[wanted.finish]
    assert response.id.startswith("resp_")
    assert (response.object, response.model, response.instructions) == ("response", server.model, "be brief")
    assert response.usage is not None
    assert response.usage.input_tokens == len(wanted.prompt_tokens)
    assert response.usage.output_tokens == len(wanted.tokens)
    items: Any = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "input_text", "text": ASKED}]},
    ]
    assert client.responses.create(model=server.model, input=items, **GREEDY).output_text == wanted.text


def test_a_stream_is_the_whole_in_pieces(server: Server, client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": server.model, "input": ASKED, **GREEDY}
    whole = client.responses.create(**request)
    with client.responses.create(**request, stream=True) as stream:
        events: list[Any] = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:4]] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]  # fmt: skip
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(pieces) == whole.output_text
    final = events[-1].response
    assert events[-1].type == f"response.{whole.status}"
    assert (final.output_text, final.status, final.usage.output_tokens) == (
        whole.output_text,
        whole.status,
        whole.usage and whole.usage.output_tokens,
    )


def test_the_events_go_by_their_names(server: Server) -> None:
    body = {"model": server.model, "input": ASKED, "stream": True, **GREEDY}
    answer = httpx.post(f"{server.api}/responses", json=body, timeout=PATIENCE_S)
    *events, rest = answer.text.split("\n\n")
    assert rest == ""
    for event in events:
        name, data = event.split("\n")
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]


def test_a_conversation_goes_on(server: Server, client: openai.OpenAI, llm: LLM) -> None:
    first = client.responses.create(model=server.model, input=ASKED, instructions="be brief", **GREEDY)
    with client.responses.create(
        model=server.model, input="And Bern?", previous_response_id=first.id, stream=True, **GREEDY
    ) as stream:
        *_, last = stream
    second: Any = last
    third = client.responses.create(
        model=server.model, input="Why?", previous_response_id=second.response.id, instructions="be loud", **GREEDY
    )
    assert third.previous_response_id == second.response.id
    said = [user(ASKED), {"role": "assistant", "content": first.output_text}, user("And Bern?")]
    said += [{"role": "assistant", "content": second.response.output_text}, user("Why?")]
    wanted = llm.chat([{"role": "system", "content": "be loud"}, *said], SamplingParams(temperature=0.0, max_tokens=24))
    assert third.output_text == wanted.text
    assert client.responses.retrieve(third.id) == third
    client.responses.delete(first.id)
    assert client.responses.retrieve(second.response.id).id == second.response.id
    for use in (
        lambda: client.responses.retrieve(first.id),
        lambda: client.responses.delete(first.id),
        lambda: client.responses.create(model=server.model, input="a", previous_response_id=first.id),
    ):
        with pytest.raises(openai.NotFoundError, match="there is no response"):
            use()


def test_what_is_not_to_be_kept_is_not(server: Server, client: openai.OpenAI) -> None:
    response = client.responses.create(model=server.model, input="a", store=False, max_output_tokens=1)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


@pytest.mark.parametrize("kept", [True, False], ids=["by id", "by items"])
def test_a_function_is_called_and_its_output_comes_back(server: Server, client: openai.OpenAI, kept: bool) -> None:
    choice: Any = {"type": "function", "name": "weather"}
    request: dict[str, Any] = {"model": server.model, "tools": [TOOL], "parallel_tool_calls": False, "store": kept}
    request |= COLD
    response = client.responses.create(
        input=[user(ASKED)],
        tool_choice=choice,
        max_output_tokens=600,
        **request,  # type: ignore[arg-type]
    )
    (call,) = [item for item in response.output if item.type == "function_call"]
    jsonschema_rs.validate(SCHEMA, json.loads(call.arguments))
    output = {"type": "function_call_output", "call_id": call.call_id, "output": 'rain, "ü" \\ 🌧'}
    more: Any = (
        {"input": [output], "previous_response_id": response.id}
        if kept
        else {"input": [user(ASKED), *response.output, output]}
    )
    final = client.responses.create(tool_choice="none", max_output_tokens=24, **request, **more)
    assert {item.type for item in final.output} <= {"message"}
    assert final.usage is not None
    assert response.usage is not None


def test_streamed_calls(server: Server, client: openai.OpenAI) -> None:
    with client.responses.create(
        model=server.model,
        input=ASKED,
        tools=[TOOL],
        tool_choice="required",
        max_output_tokens=600,
        stream=True,
        **COLD,
    ) as stream:
        events: list[Any] = list(stream)
    pieces: dict[str, str] = {}
    for event in events:
        if event.type == "response.function_call_arguments.delta":
            pieces[event.item_id] = pieces.get(event.item_id, "") + event.delta
    calls = [item for item in events[-1].response.output if item.type == "function_call"]
    assert pieces == {call.id: call.arguments for call in calls}
    for call in calls:
        if call.status == "completed":
            jsonschema_rs.validate(SCHEMA, json.loads(call.arguments))
    assert calls[0].status == "completed"


def test_an_answer_of_a_schema(server: Server, client: openai.OpenAI) -> None:
    """The SDK's own stream helper takes an answer that was cut off for an error; this one ends by itself."""
    request: dict[str, Any] = {"model": server.model, "input": ASKED, "text": FORM, "max_output_tokens": 600, **COLD}
    response = client.responses.create(**request)
    assert response.status == "completed"
    jsonschema_rs.validate(SCHEMA, json.loads(response.output_text))
    with client.responses.stream(**request) as stream:
        final = stream.get_final_response()
    jsonschema_rs.validate(SCHEMA, json.loads(final.output_text))


def test_async(server: Server, client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": server.model, "input": ASKED, **GREEDY}
    wanted = client.responses.create(**request).output_text

    async def ask() -> None:
        async with server.async_client() as client:
            responses = await asyncio.gather(*[client.responses.create(**request) for _ in range(4)])
            assert [response.output_text for response in responses] == [wanted] * 4

    asyncio.run(ask())


IMAGE = {"type": "input_image", "image_url": "https://example.org/a.png"}
NO_SCHEMA = {"type": "object", "properties": {"a": {"not": {}}}}
WRONG: list[tuple[type[openai.APIStatusError], str, dict[str, Any]]] = [
    (openai.NotFoundError, "model", {"model": "gpt-5"}),
    (openai.NotFoundError, "previous_response_id", {"previous_response_id": "resp_0"}),
    (openai.BadRequestError, "max_output_tokens", {"max_output_tokens": 0}),
    (openai.BadRequestError, "max_output_tokens", {"max_output_tokens": 1_000_000}),
    (openai.BadRequestError, "temprature", {"extra_body": {"temprature": 1}}),
    (openai.BadRequestError, "input[0].content[0].type", {"input": [{"role": "user", "content": [IMAGE]}]}),
    (openai.BadRequestError, "tools[0].type", {"tools": [{"type": "file_search"}]}),
    (openai.BadRequestError, "tools[0].parameters", {"tools": [{**TOOL, "strict": True, "parameters": NO_SCHEMA}]}),
    (openai.BadRequestError, "tool_choice", {"tools": [TOOL], "tool_choice": {"type": "function", "name": "x"}}),
    (
        openai.BadRequestError,
        "text.format.schema",
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": NO_SCHEMA}}},
    ),
    (openai.BadRequestError, "reasoning.effort", {"reasoning": {"effort": "high"}}),
    (openai.BadRequestError, "truncation", {"truncation": "some"}),
    (openai.BadRequestError, "background", {"background": True}),
]


@pytest.mark.parametrize(("kind", "param", "wrong"), WRONG, ids=[str(row[2])[:40] for row in WRONG])
def test_errors(
    server: Server, client: openai.OpenAI, kind: type[openai.APIStatusError], param: str, wrong: dict[str, Any]
) -> None:
    with pytest.raises(kind) as caught:
        client.responses.create(**{"model": server.model, "input": "a", "max_output_tokens": 4, **wrong})
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


def test_a_kept_response_is_streamed_again(server: Server, client: openai.OpenAI) -> None:
    """With the events it had the first time, from any of them on."""
    with client.responses.create(model=server.model, input=ASKED, stream=True, **GREEDY) as stream:
        sent: list[Any] = list(stream)
    name = sent[0].response.id
    with client.responses.retrieve(name, stream=True) as stream:
        assert list(stream) == sent
    with client.responses.retrieve(name, stream=True, starting_after=4) as stream:
        assert list(stream) == sent[5:]
    for wrong, param in (
        ({"starting_after": 1}, "starting_after"),
        ({"include_obfuscation": True}, "include_obfuscation"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.retrieve(name, **wrong)  # type: ignore[call-overload]
        assert caught.value.param == param


def test_the_items_it_answered(server: Server, client: openai.OpenAI) -> None:
    first = client.responses.create(model=server.model, input=ASKED, **GREEDY)
    again: Any = [user("And?"), {"role": "developer", "content": "be brief"}]
    second = client.responses.create(model=server.model, input=again, previous_response_id=first.id, **GREEDY)
    pages = client.responses.input_items.list(second.id, limit=1, order="asc", include=["reasoning.encrypted_content"])
    listed: list[Any] = list(pages)
    assert [item.role for item in listed] == ["user", "assistant", "user", "developer"]
    assert listed[0].content[0].text == ASKED
    assert listed[1].content[0].text == first.output_text
    assert [item.id for item in client.responses.input_items.list(second.id)] == [item.id for item in listed[::-1]]


def test_tokens_are_counted_as_they_are_used(server: Server, client: openai.OpenAI) -> None:
    first = client.responses.create(model=server.model, input=ASKED, **GREEDY)
    for more in ({}, {"instructions": "be brief"}, {"tools": [TOOL]}, {"previous_response_id": first.id}):
        asked: dict[str, Any] = {"model": server.model, "input": "And?", **more}
        usage = client.responses.create(**asked, max_output_tokens=1).usage
        assert usage is not None
        assert client.responses.input_tokens.count(**asked).input_tokens == usage.input_tokens
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.input_tokens.count(model=server.model)
    assert caught.value.param == "input"


def test_there_is_nothing_to_cancel(server: Server, client: openai.OpenAI) -> None:
    """Only what runs in the background can be: OpenAI answers alike."""
    response = client.responses.create(model=server.model, input="a", max_output_tokens=1)
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response") as caught:
        client.responses.cancel(response.id)
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_0")


def test_log_probabilities(server: Server, client: openai.OpenAI) -> None:
    """The same as in chat completions."""
    asked: dict[str, Any] = {"model": server.model, "input": ASKED, "top_logprobs": 2, **GREEDY}
    asked["include"] = ["message.output_text.logprobs"]
    response: Any = client.responses.create(**asked)
    entries = response.output[0].content[0].logprobs
    chat = client.chat.completions.create(
        model=server.model,
        messages=[user(ASKED)],
        logprobs=True,
        top_logprobs=2,
        max_tokens=24,
        **COLD,  # type: ignore[list-item]
    )
    assert chat.choices[0].logprobs is not None
    wanted = chat.choices[0].logprobs.content or []
    assert [entry.model_dump() for entry in entries] == [entry.model_dump() for entry in wanted]
    with client.responses.create(**asked, stream=True) as stream:
        events: list[Any] = list(stream)
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [one.token for event in deltas for one in event.logprobs] == [entry.token for entry in entries]
    assert client.responses.retrieve(response.id, include=["message.output_text.logprobs"]) == response


def test_neutral_values_are_taken(server: Server, client: openai.OpenAI) -> None:
    response = client.responses.create(
        model=server.model,
        input="a",
        max_output_tokens=1,
        tools=[],
        tool_choice="auto",
        text={"format": {"type": "text"}},
        reasoning={"effort": None, "summary": "auto"},
        include=["reasoning.encrypted_content"],
        truncation="disabled",
        service_tier="auto",
        background=False,
        metadata={"a": "b"},
        user="me",
        extra_body={"presence_penalty": 0, "frequency_penalty": 0, "top_k": -1, "chat_template_kwargs": {}},
    )
    assert (response.metadata, response.user) == ({"a": "b"}, "me")


@pytest.mark.parametrize("stream", [True, False])
def test_hanging_up_cancels(server: Server, stream: bool) -> None:
    """In the engine: nothing runs and no block is held soon after. What was cut off is not kept either."""
    until(server.idle, "rest before")
    cancelled = "penstock_requests_total{finish=cancelled}"
    before = server.metrics().get(cancelled, 0)
    endless: dict[str, Any] = {
        "model": server.model,
        "input": ASKED,
        "text": ENDLESS,
        "max_output_tokens": ENDLESS_TOKENS,
    }
    names: list[str] = []

    async def ask() -> None:
        async with server.async_client() as client:
            asking = asyncio.ensure_future(client.responses.create(**endless, stream=stream))
            if stream:
                events: Any = await asking
                names.append((await anext(aiter(events))).response.id)
                await events.close()
                return
            while not await asyncio.to_thread(server.metric, "num_requests_running"):
                await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(asyncio.wait_for(ask(), PATIENCE_S))
    until(server.idle, "the end of a request whose client has gone")
    assert server.metrics()[cancelled] == before + 1
    for name in names:
        assert server.status(f"/v1/responses/{name}") == 404
