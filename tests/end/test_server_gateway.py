"""One server with a model of its own, an upstream (a second Penstock), one that is dead, and a route over them; used
through the SDKs of OpenAI, Anthropic and Ollama."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anthropic
import httpx
import ollama
import openai
import pytest

from helpers.server_process import PATIENCE_S, Server

QUESTION = {"role": "user", "content": "Hi"}
SEEDED = {"max_tokens": 8, "temperature": 0.0}


@pytest.fixture(scope="module")
def gateway(server: Server, tiny: Path, closed_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    capabilities = ["chat", "completion", "embedding", "structured_output", "logprobs", "token_ids", "extensions"]
    file = tmp_path_factory.mktemp("gateway") / "penstock.toml"
    file.write_text(
        f"""
        [routing]
        fallback_rounds = 0

        [[models]]
        name = "local"
        model = "{tiny}"
        kv_memory = "50MB"
        replicas = 2

        [[models]]
        name = "far"
        upstream = "{server.api}"
        upstream_model = "{server.model}"
        capabilities = {capabilities}
        price = {{ input = 1.0, output = 2.0 }}

        [[models]]
        name = "broken"
        upstream = "http://127.0.0.1:{closed_port}/v1"
        fallback = [{{ model = "local", max_tokens = 4 }}]

        [[routes]]
        name = "auto"
        models = ["local", "far"]
        """
    )
    with Server(f"--config={file}") as gateway:
        yield gateway


@pytest.fixture(scope="module")
def direct(server: Server) -> str:
    """What the upstream's model answers."""
    with server.client() as client:
        answer = client.chat.completions.create(model=server.model, messages=[QUESTION], **SEEDED)  # type: ignore[call-overload]
    return str(answer.choices[0].message.content)


def test_the_openai_sdk_gets_the_upstream_s_answer_whole_and_streamed(gateway: Server, direct: str) -> None:
    with gateway.client() as client:
        whole = client.chat.completions.create(model="far", messages=[QUESTION], **SEEDED)  # type: ignore[call-overload]
        assert (whole.model, whole.choices[0].message.content) == ("far", direct)
        assert whole.usage.completion_tokens == 8
        options = {"stream": True, "stream_options": {"include_usage": True}}
        events = list(client.chat.completions.create(model="far", messages=[QUESTION], **SEEDED, **options))  # type: ignore[call-overload]
        assert "".join(event.choices[0].delta.content or "" for event in events if event.choices) == direct
        assert events[-1].usage == whole.usage


def test_anthropic_s_and_ollama_s_requests_are_translated(gateway: Server, direct: str) -> None:
    with anthropic.Anthropic(base_url=gateway.url, api_key="none", max_retries=0, timeout=PATIENCE_S) as client:
        asked = {"model": "far", "messages": [QUESTION], "max_tokens": 8, "extra_body": {"temperature": 0.0}}
        message = client.messages.create(**asked)  # type: ignore[call-overload]
        assert (message.content[0].text, message.stop_reason) == (direct, "max_tokens")
        with client.messages.stream(**asked) as stream:  # type: ignore[arg-type]
            assert stream.get_final_text() == direct
    options = {"num_predict": 8, "temperature": 0.0}
    with ollama.Client(gateway.url, timeout=PATIENCE_S) as client:
        found = client.chat(model="far", messages=[QUESTION], options=options)
    assert (found.message.content, found.eval_count) == (direct, 8)


def test_log_probabilities_and_embeddings_are_the_upstream_s(gateway: Server, server: Server) -> None:
    with gateway.client() as client, server.client() as upstream:
        asked = {"messages": [QUESTION], **SEEDED, "logprobs": True, "top_logprobs": 2}
        ours = client.chat.completions.create(model="far", **asked)  # type: ignore[call-overload]
        theirs = upstream.chat.completions.create(model=server.model, **asked)  # type: ignore[call-overload]
        assert ours.choices[0].logprobs == theirs.choices[0].logprobs
        vectors = [
            one.embeddings.create(model=name, input="word") for one, name in ((client, "far"), (upstream, server.model))
        ]
        assert vectors[0].data[0].embedding == pytest.approx(vectors[1].data[0].embedding, abs=1e-6)
        assert vectors[0].usage.total_tokens == vectors[1].usage.total_tokens
        assert vectors[0].usage.model_extra == {"cost_usd": 3e-06}  # 3 tokens at the price of "far"


def test_a_dead_upstream_is_replaced_by_the_chain(gateway: Server) -> None:
    with gateway.client() as client:
        raw = client.chat.completions.with_raw_response.create(model="broken", messages=[QUESTION], **SEEDED)  # type: ignore[call-overload]
        found = raw.parse()
        assert (found.model, found.usage.completion_tokens) == ("local", 4)
        assert raw.headers["x-penstock-deployment"] in ("local/0", "local/1")
        assert raw.headers["x-penstock-route"].startswith("broken/0 failed: upstream_failed | local/")
        warning = "answered by local after broken failed (upstream_failed), at most 4 tokens"
        assert raw.headers["x-penstock-warnings"] == warning
        name = raw.headers["x-request-id"]
    record = httpx.get(f"{gateway.url}/observe/requests/{name}", timeout=PATIENCE_S).json()
    failure, decision = record["route"]
    assert (failure["kind"], failure["name"], failure["code"]) == ("failure", "broken/0", "upstream_failed")
    assert failure["message"].startswith("upstream 'broken': it cannot be reached")
    assert (decision["kind"], decision["policy"], decision["chosen"][:6]) == ("decision", "prefix", "local/")
    assert [one["chosen"] for one in decision["considered"]] == [True, False]
    assert (record["asked"], record["model"]) == ("broken", "local")
    assert [one["output_tokens"] for one in record["sequences"]] == [4]


def test_a_conversation_stays_at_the_replica_that_has_its_prefix(gateway: Server) -> None:
    found = []
    with gateway.client() as client:
        for text in ("a b c d " * 20, "w x y z " * 20) * 3:
            body = {"model": "local", "prompt": text, "max_tokens": 1}
            raw = client.completions.with_raw_response.create(**body)  # type: ignore[call-overload]
            details = raw.parse().usage.prompt_tokens_details
            found.append((raw.headers["x-penstock-deployment"], details.cached_tokens, raw.headers["x-penstock-route"]))
    for name, cached, why in found[2:]:
        assert name == found[0][0] or name == found[1][0]
        assert cached > 0
        assert why.startswith(f"{name} by prefix: {cached} of")
        assert "; not local/" in why
    assert [name for name, _, _ in found] == [found[0][0], found[1][0]] * 3


def test_auto_goes_by_the_size_of_the_request(gateway: Server) -> None:
    with gateway.client() as client:
        answers = [
            client.chat.completions.create(model="auto", messages=[{"role": "user", "content": text}], **SEEDED)  # type: ignore[call-overload]
            for text in ("Hi", "def f(x):\n    return x;\nimport os\n")
        ]
        assert [answer.model for answer in answers] == ["local", "far"]


def test_models_say_what_they_are(gateway: Server) -> None:
    with gateway.client() as client:
        models = {model.id: model for model in client.models.list()}
        assert list(models) == ["local", "far", "broken", "auto"]
        assert models["far"].owned_by == "127.0.0.1"
        assert models["far"].model_dump()["price"] == {"input": 1.0, "output": 2.0, "cached_input": None}
        tool = {"type": "function", "function": {"name": "look"}}
        with pytest.raises(openai.BadRequestError, match="'far' does not declare 'tools'"):
            client.chat.completions.create(model="far", messages=[QUESTION], tools=[tool])  # type: ignore[arg-type, list-item]


def test_a_model_that_is_added_has_its_own_chain(gateway: Server, server: Server) -> None:
    entry = {"name": "late", "upstream": "http://127.0.0.1:9/v1", "fallback": ["local"]}
    wrong = httpx.post(f"{gateway.url}/admin/models", json={**entry, "fallback": ["none"]}, timeout=PATIENCE_S)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "fallback")
    httpx.post(f"{gateway.url}/admin/models", json=entry, timeout=PATIENCE_S).raise_for_status()
    with gateway.client() as client:
        answer = client.chat.completions.create(model="late", messages=[QUESTION], **SEEDED)  # type: ignore[call-overload]
        assert answer.model == "local"
    httpx.delete(f"{gateway.url}/admin/models/late", timeout=PATIENCE_S).raise_for_status()
    with gateway.client() as client, pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="late", messages=[QUESTION], **SEEDED)  # type: ignore[call-overload]
