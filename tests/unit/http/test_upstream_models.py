"""Models of upstreams through all APIs of the server, and their fallback, as clients see it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import pytest

from helpers.scripted_upstream import Exchange, Script, ScriptedUpstream, answer, delta, usage
from penstock import composition, settings
from penstock.deployment.protocol import ModelCard
from penstock.deployment.registry import ModelRegistry
from penstock.deployment.upstream_endpoint import Endpoint
from penstock.deployment.upstream_model import UpstreamModel
from penstock.flow.identity import SequenceNumbers
from penstock.gateway.gateway import ChainLink
from penstock.gateway.route_model import RouteModel
from penstock.http.service import Service
from penstock.settings.models import Capability

CAPABILITIES: frozenset[Capability] = frozenset(("chat", "completion", "embedding", "tools", "reasoning", "logprobs"))
CHAT = {"model": "big", "messages": [{"role": "user", "content": "Hi"}]}


@asynccontextmanager
async def serving(**scripts: Script) -> AsyncIterator[tuple[httpx.AsyncClient, Service, dict[str, ScriptedUpstream]]]:
    """A server whose models are upstreams that follow scripts; the first falls back to the others."""
    upstreams = {name: ScriptedUpstream(script) for name, script in scripts.items()}
    numbers, models = SequenceNumbers(), ModelRegistry()
    chosen = settings.load({"fallback_rounds": 0}, environ={})
    async with asyncio.TaskGroup() as tasks:
        stop = asyncio.Event()

        async def run(upstream: ScriptedUpstream, ready: asyncio.Event) -> None:
            async with upstream.running():
                ready.set()
                await stop.wait()

        for name, upstream in upstreams.items():
            ready = asyncio.Event()
            tasks.create_task(run(upstream, ready))
            await ready.wait()
            endpoint = Endpoint(name=name, url=upstream.url, model="there", capabilities=CAPABILITIES)
            card = ModelCard(name=name, capabilities=CAPABILITIES, remote=True)
            models.add(UpstreamModel(endpoint, card, numbers))
        gateway = composition.gateway(chosen, models, b"secret")
        first, *others = upstreams
        gateway.chains[first] = [ChainLink(name) for name in others]
        app, service, _ = composition.server(chosen, models, gateway)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            try:
                yield client, service, upstreams
            finally:
                assert service.open == 0, "every request has ended"
                service.close()
                stop.set()


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        asyncio.run(main())

    test.__name__ = main.__name__
    return test


async def hello(exchange: Exchange) -> None:
    await answer(exchange, "Hello", " you", counts=usage(12, 2))


async def failing(exchange: Exchange) -> None:
    await exchange.respond(503, b"{}")


async def look(exchange: Exchange) -> None:
    """Thinks, says something and calls a tool."""
    await exchange.start_events()
    await exchange.event(delta(reasoning_content="Hm."))
    await exchange.event(delta(content="I look."))
    call = {"index": 0, "id": "c1", "function": {"name": "look", "arguments": '{"a": 1}'}}
    await exchange.event(delta(tool_calls=[call]))
    await exchange.event(delta(finish="tool_calls"))
    await exchange.event(usage(12, 9, completion_tokens_details={"reasoning_tokens": 2}))
    await exchange.end_events()


def data_events(text: str) -> list[Any]:
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ") and line != "data: [DONE]"]
    return [json.loads(line) for line in lines]


@run
async def test_chat() -> None:
    async with serving(big=hello) as (client, _, _):
        whole = (await client.post("/v1/chat/completions", json=CHAT)).json()
        assert whole["choices"][0]["message"]["content"] == "Hello you"
        assert (whole["model"], whole["choices"][0]["finish_reason"]) == ("big", "stop")
        assert whole["usage"]["prompt_tokens"] == 12
        assert whole["usage"]["completion_tokens"] == 2
        assert "estimated" not in whole["usage"]
        options = {"stream": True, "stream_options": {"include_usage": True}}
        response = await client.post("/v1/chat/completions", json={**CHAT, **options})
        assert response.headers["x-penstock-deployment"] == "big/0"
        events = data_events(response.text)
        texts = [event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"]]
        assert "".join(texts) == "Hello you"
        assert events[-1]["usage"]["total_tokens"] == 14


@run
async def test_tool_calls_and_reasoning_in_each_api() -> None:
    function = {"name": "look", "parameters": {"type": "object"}}
    async with serving(big=look) as (client, _, upstreams):
        tools = {"tools": [{"type": "function", "function": function}]}
        message = (await client.post("/v1/chat/completions", json={**CHAT, **tools})).json()["choices"][0]["message"]
        assert message["reasoning_content"] == "Hm."
        assert message["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"a": 1}'}

        anthropic = {**CHAT, "max_tokens": 50, "tools": [{"name": "look", "input_schema": {"type": "object"}}]}
        found = (await client.post("/v1/messages", json=anthropic)).json()
        assert [block["type"] for block in found["content"]] == ["thinking", "text", "tool_use"]
        assert (found["stop_reason"], found["model"]) == ("tool_use", "big")
        assert found["content"][2]["input"] == {"a": 1}
        assert found["usage"]["output_tokens"] == 9

        responses = {"model": "big", "input": "Hi", "store": False, "tools": [{"type": "function", **function}]}
        found = (await client.post("/v1/responses", json=responses)).json()
        assert [item["type"] for item in found["output"]] == ["reasoning", "message", "function_call"]

        ollama = {**CHAT, "stream": False, **tools}
        found = (await client.post("/api/chat", json=ollama)).json()
        assert found["message"]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
        assert found["eval_count"] == 9
        assert all(one.body["tools"][0]["function"]["name"] == "look" for one in upstreams["big"].requests)


@run
async def test_streams_of_the_other_apis() -> None:
    async with serving(big=hello) as (client, _, _):
        body = {**CHAT, "max_tokens": 50, "stream": True}
        events = data_events((await client.post("/v1/messages", json=body)).text)
        assert (
            "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta") == "Hello you"
        )
        assert events[-2]["usage"]["output_tokens"] == 2
        body = {"model": "big", "input": "Hi", "stream": True, "store": False}
        events = data_events((await client.post("/v1/responses", json=body)).text)
        assert events[-1]["response"]["usage"]["input_tokens"] == 12
        lines = (await client.post("/api/chat", json=CHAT)).text.splitlines()
        assert "".join(json.loads(line)["message"]["content"] for line in lines) == "Hello you"


@run
async def test_embeddings_and_completions() -> None:
    async def script(exchange: Exchange) -> None:
        if exchange.path.endswith("/embeddings"):
            body = {"data": [{"embedding": [3.0, 4.0]}], "usage": {"prompt_tokens": 5}}
            await exchange.respond(200, json.dumps(body).encode())
            return
        await exchange.start_events()
        await exchange.event({"model": "there", "choices": [{"index": 0, "text": "and so", "finish_reason": "length"}]})
        await exchange.event(usage(3, 2))
        await exchange.end_events()

    async with serving(big=script) as (client, _, _):
        found = (await client.post("/v1/embeddings", json={"model": "big", "input": ["a", "b"]})).json()
        assert [one["embedding"] for one in found["data"]] == [pytest.approx([0.6, 0.8])] * 2
        assert found["usage"]["prompt_tokens"] == 10
        ollama = {"model": "big", "input": ["a", "b"]}
        found = (await client.post("/api/embed", json=ollama)).json()
        assert found["embeddings"] == [pytest.approx([0.6, 0.8])] * 2
        assert found["prompt_eval_count"] == 10
        found = (await client.post("/api/embeddings", json={"model": "big", "prompt": "a"})).json()
        assert found["embedding"] == pytest.approx([0.6, 0.8])
        refused = await client.post("/api/embed", json={**ollama, "dimensions": 1})
        assert (refused.status_code, "dimensions" in refused.text) == (400, True)
        found = (await client.post("/v1/completions", json={"model": "big", "prompt": "Once"})).json()
        assert found["choices"][0]["text"] == "and so"
        assert (found["choices"][0]["finish_reason"], found["usage"]["completion_tokens"]) == ("length", 2)


class Words:
    """A tokenizer that has one token per word."""

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        return list(range(len(text.split())))


@run
async def test_prompts_are_counted_by_what_is_known_and_that_is_said() -> None:
    async with serving(big=hello) as (client, service, upstreams):
        service.models.add(RouteModel("auto", ["big"], "size", service.models.find, service.gateway.router))
        big = cast(UpstreamModel, service.models.find("big"))
        message = {"messages": [{"role": "user", "content": "How are you?"}]}
        for tokenizer, text, chat in ((None, 12, 36), (Words(), 3, 27)):  # bytes or words; 24 for the template
            big._tokenizer = tokenizer
            for name in ("big", "auto"):
                for path, fields, field, count in (
                    ("/v1/messages/count_tokens", message, "input_tokens", chat),
                    ("/v1/responses/input_tokens", {"input": "How are you?"}, "input_tokens", chat),
                    ("/tokenize", message, "count", chat),
                    ("/tokenize", {"prompt": "How are you?"}, "count", text),
                ):
                    answered = await client.post(path, json={"model": name, **fields})
                    assert answered.status_code == 200, answered.text
                    assert (answered.json()[field], answered.json()["estimated"]) == (count, True), (path, name)
        assert answered.json()["tokens"] == [0, 1, 2]
        strings = {"model": "big", "prompt": "Hi", "return_token_strs": True}
        for path, fields in (("/tokenize", strings), ("/detokenize", {"model": "big", "tokens": [1]})):
            assert (await client.post(path, json=fields)).status_code == 400
        assert upstreams["big"].requests == []


@run
async def test_a_field_that_an_upstream_cannot_serve_is_rejected_in_the_client_s_words() -> None:
    async with serving(big=hello) as (client, _, upstreams):
        for path, fields, param in (
            ("/v1/chat/completions", {"top_k": 5}, "top_k"),
            ("/v1/chat/completions", {"return_token_ids": True}, "return_token_ids"),
            ("/v1/chat/completions", {"response_format": {"type": "json_object"}}, "response_format"),
            ("/v1/messages", {"max_tokens": 5, "top_k": 5}, "top_k"),
            ("/api/chat", {"options": {"top_k": 5}}, "top_k"),
        ):
            response = await client.post(path, json={**CHAT, **fields})
            assert response.status_code == 400, response.text
            assert param in response.text
            assert "big" in response.text
        assert upstreams["big"].requests == []


@run
async def test_an_estimated_usage_is_marked() -> None:
    async def silent(exchange: Exchange) -> None:
        await answer(exchange, "Hello")

    async with serving(big=silent) as (client, _, _):
        found = (await client.post("/v1/chat/completions", json=CHAT)).json()
        assert found["usage"]["estimated"] is True
        assert found["usage"]["completion_tokens"] == 5
        scrape = (await client.get("/metrics")).text
        assert 'penstock_estimated_usage_total{model="big"} 1.0' in scrape


@pytest.mark.parametrize("stream", [False, True])
def test_a_failed_upstream_is_replaced_and_the_answer_says_so(stream: bool) -> None:
    async def main() -> None:
        async with serving(big=failing, small=hello) as (client, _, _):
            for path in ("/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/responses"):
                body: dict[str, Any] = {**CHAT, "stream": stream}
                if path == "/v1/messages":
                    body["max_tokens"] = 50
                if path == "/v1/responses":
                    body = {"model": "big", "input": "Hi", "stream": stream, "store": False}
                response = await client.post(path, json=body)
                assert response.status_code == 200, response.text
                assert '"small"' in response.text
                assert '"big"' not in response.text
                assert response.headers["x-penstock-deployment"] == "small/0"
                assert response.headers["x-penstock-route"].startswith("big/0 failed: upstream_failed")
                assert "answered by small after big failed" in response.headers["x-penstock-warnings"]
            scrape = (await client.get("/metrics")).text
            failed = 'penstock_attempt_failures_total{code="upstream_failed",deployment="big/0",model="big"} 4.0'
            assert failed in scrape
            assert 'penstock_requests_total{finish="end",model="small",replica="0"} 4.0' in scrape

    asyncio.run(main())


@run
async def test_when_all_fail_the_client_gets_the_first_error() -> None:
    async def busy(exchange: Exchange) -> None:
        await exchange.respond(429, b"{}", "retry-after: 7\r\n")

    async with serving(big=busy, small=failing) as (client, _, _):
        response = await client.post("/v1/chat/completions", json=CHAT)
        assert (response.status_code, response.headers["retry-after"]) == (429, "7")
        assert response.json()["error"]["code"] == "upstream_busy"
        assert "then failed: small/0 (upstream_failed)" in response.json()["error"]["message"]


@run
async def test_a_stream_that_has_begun_ends_in_an_error() -> None:
    async def half(exchange: Exchange) -> None:
        await exchange.start_events()
        await exchange.event(delta(content="Hel"))
        await exchange.event(delta(content="lo"))
        exchange.hang_up()

    async with serving(big=half, small=hello) as (client, _, upstreams):
        response = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
        events = data_events(response.text)
        assert events[-1]["error"]["code"] == "upstream_failed"
        assert upstreams["small"].requests == []
        whole = (await client.post("/v1/chat/completions", json=CHAT)).json()
        assert whole["choices"][0]["message"]["content"] == "Hello you", "nothing was sent yet"


@run
async def test_models_are_listed_with_what_they_can_do() -> None:
    async with serving(big=hello, small=hello) as (client, _, _):
        listed = (await client.get("/v1/models")).json()["data"]
        assert [one["id"] for one in listed] == ["big", "small"]


@run
async def test_a_prompt_of_ollama_is_a_message_for_an_upstream_that_chats() -> None:
    async with serving(big=hello) as (client, _, upstreams):
        body = {"model": "big", "prompt": "Hi", "system": "Be kind.", "think": True, "stream": False}
        found = (await client.post("/api/generate", json=body)).json()
        assert found["response"] == "Hello you"
        (asked,) = upstreams["big"].requests
        assert [message["role"] for message in asked.body["messages"]] == ["system", "user"]
        assert asked.body["reasoning_effort"] == "medium"
