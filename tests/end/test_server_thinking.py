"""A model that thinks aloud, through the newer APIs: thoughts come apart from the answer, and can be switched off."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import ollama
import pytest

from helpers import tiny_models
from helpers.server_process import PATIENCE_S, Server

ASKED = "Where is Zürich?"
COLD = {"temperature": 0}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tiny_models.make_thinking(tmp_path_factory.mktemp("thinker")), "--kv-memory", "20MB") as server:
        yield server


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({}, "thinking"),
        ({"thinking": {"type": "adaptive"}}, "thinking"),
        ({"output_config": {"effort": "high"}}, "thinking"),
        ({"thinking": {"type": "disabled"}}, "text"),
    ],
)
def test_messages(thinker: Server, more: dict[str, Any], kind: str) -> None:
    said: list[Any] = [{"role": "user", "content": ASKED}]
    with anthropic.Anthropic(base_url=thinker.url, api_key="none", max_retries=0, timeout=PATIENCE_S) as client:
        message = client.messages.create(model=thinker.model, max_tokens=12, messages=said, extra_body=COLD, **more)
        assert [block.type for block in message.content] == [kind]
        said += [{"role": "assistant", "content": message.content}, {"role": "user", "content": "Why?"}]
        with client.messages.stream(
            model=thinker.model, max_tokens=12, messages=said, extra_body=COLD, **more
        ) as stream:
            kinds = {event.type for event in stream}
        assert kind in kinds  # the SDK's own events: "thinking" and "text"
        assert ("text" if kind == "thinking" else "thinking") not in kinds


@pytest.mark.parametrize(("effort", "kind"), [(None, "reasoning"), ("high", "reasoning"), ("none", "message")])
def test_responses(thinker: Server, effort: Any, kind: str) -> None:
    request: dict[str, Any] = {"model": thinker.model, "reasoning": {"effort": effort}, "max_output_tokens": 12, **COLD}
    with thinker.client() as client:
        response = client.responses.create(input=ASKED, **request)
        assert [item.type for item in response.output] == [kind]
        assert response.usage is not None
        assert response.usage.output_tokens_details.reasoning_tokens == (12 if kind == "reasoning" else 0)
        said: Any = [{"role": "user", "content": ASKED}, *response.output, {"role": "user", "content": "Why?"}]
        with client.responses.create(input=said, stream=True, **request) as stream:
            events: list[Any] = list(stream)
        deltas = {event.type for event in events if hasattr(event, "delta")}
        assert deltas == {"response.reasoning_text.delta" if kind == "reasoning" else "response.output_text.delta"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("field", ["thinking_token_budget", "reasoning_budget"])
def test_a_budget_of_thoughts(thinker: Server, field: str, stream: bool) -> None:
    """The marks are letters here, and a random model closes nothing by itself."""
    asked: dict[str, Any] = {
        "model": thinker.model,
        "messages": [{"role": "user", "content": ASKED}],
        "seed": 1,
        "n": 2,
    }
    asked |= {"max_tokens": 40, field: 7}
    forms = {"response_format": {"type": "regex", "regex": "(yes|no) it is"}}
    if stream:
        body = {**asked, **forms, "stream": True}
        with httpx.stream("POST", f"{thinker.api}/chat/completions", json=body, timeout=PATIENCE_S) as got:
            chunks = [json.loads(line[6:]) for line in got.iter_lines() if line.startswith("data: {")]
        deltas = [choice for chunk in chunks for choice in chunk["choices"]]
        texts = [
            "".join(one["delta"].get("content") or "" for one in deltas if one["index"] == index) for index in (0, 1)
        ]
        assert all(any(one["delta"].get("reasoning_content") for one in deltas if one["index"] == n) for n in (0, 1))
    else:
        answer = httpx.post(f"{thinker.url}/v1/chat/completions", json={**asked, **forms}, timeout=PATIENCE_S).json()
        texts = [choice["message"]["content"] for choice in answer["choices"]]
        thoughts = [choice["message"]["reasoning_content"] for choice in answer["choices"]]
        assert all("</think>" not in thought for thought in thoughts)
        closing = len("</think>")  # at most: some letters have tokens together
        spent = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert 2 * 7 < spent <= 2 * (7 + closing)
    assert {*texts} <= {"yes it is", "no it is"}


def test_budgets_that_mean_nothing(thinker: Server) -> None:
    asked: dict[str, Any] = {"model": thinker.model, "messages": [{"role": "user", "content": ASKED}], "max_tokens": 9}
    url = f"{thinker.url}/v1/chat/completions"
    for budget in ({"reasoning_budget": -1}, {"thinking_token_budget": None}, {"thinking_token_budget": 9}):
        answer = httpx.post(url, json={**asked, **COLD, **budget}, timeout=PATIENCE_S).json()
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 9
    answer = httpx.post(url, json={**asked, **COLD, "reasoning_budget": 0}, timeout=PATIENCE_S).json()
    assert "reasoning_content" not in answer["choices"][0]["message"]


def test_budgets_of_models_that_do_not_think(server: Server) -> None:
    asked: dict[str, Any] = {"model": server.model, "messages": [{"role": "user", "content": ASKED}], "max_tokens": 2}
    for field in ("thinking_token_budget", "reasoning_budget"):
        refused = httpx.post(f"{server.url}/v1/chat/completions", json={**asked, field: 5}, timeout=PATIENCE_S)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)
        assert field in refused.json()["error"]["message"]
        none = httpx.post(f"{server.url}/v1/chat/completions", json={**asked, field: 0}, timeout=PATIENCE_S)
        assert none.status_code == 200


@pytest.mark.parametrize(("think", "thinks"), [(None, True), (True, True), ("low", True), (False, False)])
def test_ollama(thinker: Server, think: Any, thinks: bool) -> None:
    said: list[Any] = [{"role": "user", "content": ASKED}]
    options = {"num_predict": 12, **COLD}
    with ollama.Client(thinker.url, timeout=PATIENCE_S) as client:
        assert "thinking" in (client.show(thinker.model).capabilities or ())
        message = client.chat(thinker.model, said, options=options, think=think).message
        assert (bool(message.thinking), bool(message.content)) == (thinks, not thinks)
        generated = client.generate(thinker.model, ASKED, options=options, think=think)
        assert (generated.thinking or generated.response) == (message.thinking or message.content)
        said += [message, {"role": "user", "content": "Why?"}]
        pieces = [
            piece.message for piece in client.chat(thinker.model, said, options=options, think=think, stream=True)
        ]
        shown = (any(piece.thinking for piece in pieces), any(piece.content for piece in pieces))
        assert shown == (thinks, not thinks)
