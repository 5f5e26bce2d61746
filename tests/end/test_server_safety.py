"""Safety rules of a real server over every API: what a model is made to write does not leave, is not stored and not
logged. A grammar makes it write; the schema spells the term in a way that is no match itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers import tiny_models
from helpers.server_process import PATIENCE_S, Server, until

SPELLED = "so s[e]c[r]et[ ]p[l]a[n] it"
SCHEMA = {"type": "string", "pattern": f"^{SPELLED}$"}
ARGUMENTS = {"type": "object", "properties": {"a": SCHEMA}, "required": ["a"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
ASK = [{"role": "user", "content": "hello"}]
BAD = [{"role": "user", "content": "of Orion"}]
FUNCTION = {"name": "f", "parameters": ARGUMENTS}
CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
REGEX = {"structured_outputs": {"regex": SPELLED}}

# By name: the route, what makes the model write it, and what says that a rule has ended the answer.
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "chat": (CHAT, {"messages": ASK, "response_format": FORMAT}, '"finish_reason":"content_filter"'),
    "choices": (CHAT, {"messages": ASK, "response_format": FORMAT, "n": 2}, '"finish_reason":"content_filter"'),
    "logprobs": (
        CHAT,
        {"messages": ASK, "response_format": FORMAT, "logprobs": True, "top_logprobs": 20, "return_token_ids": True},
        '"finish_reason":"content_filter"',
    ),
    "tool": (
        CHAT,
        {"messages": ASK, "tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"},
        '"finish_reason":"content_filter"',
    ),
    "text": (TEXT, {"prompt": "hello", "echo": True, "logprobs": 5, **REGEX}, '"finish_reason":"content_filter"'),
    "prompts": (TEXT, {"prompt": ["a", "b"], **REGEX}, '"finish_reason":"content_filter"'),
    "continued": (
        TEXT,
        {"prompt": "the secret", "structured_outputs": {"regex": " p[l]an it"}},
        '"finish_reason":"content_filter"',
    ),
    "responses": (
        RESPONSES,
        {"input": "hello", "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
         "include": ["message.output_text.logprobs"], "top_logprobs": 20},
        '"reason":"content_filter"',
    ),
    "anthropic": (
        MESSAGES,
        {"messages": ASK, "max_tokens": 99, "tool_choice": {"type": "any"},
         "tools": [{"name": "f", "input_schema": ARGUMENTS}]},
        '"stop_reason":"refusal"',
    ),
    "ollama": ("/api/chat", {"messages": ASK, "format": SCHEMA}, '"done_reason":"content_filter"'),
    "generate": ("/api/generate", {"prompt": "hello", "format": SCHEMA}, '"done_reason":"content_filter"'),
}  # fmt: skip
LEAKS = ("ecret", "cret pl", "t plan", "plan it")


@pytest.fixture(scope="module")
def guarded(server: Server, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("safety") / "penstock.toml"
    file.write_text(
        f"""
        [[models]]
        name = "tiny"
        model = "{tiny}"
        kv_memory = "50MB"

        [[models]]
        name = "far"
        upstream = "{server.api}"
        upstream_model = "{server.model}"
        capabilities = ["chat", "structured_output", "tools", "logprobs"]

        [[safety]]
        name = "words"
        terms = ["secret plan"]
        on = "output"

        [[safety]]
        name = "names"
        terms = ["Orion"]
        """
    )
    with Server(f"--config={file}", "--debug") as guarded:
        yield guarded


@pytest.fixture(scope="module")
def client(guarded: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=guarded.url, timeout=PATIENCE_S) as client:
        yield client


def ask(client: httpx.Client, path: str, model: str = "tiny", **body: Any) -> httpx.Response:
    limit = {"max_tokens": 99} if path in (CHAT, TEXT) else {}
    greedy = {"temperature": 0} if path in (CHAT, TEXT, RESPONSES, MESSAGES) else {"options": {"temperature": 0}}
    return client.post(
        path, json={"model": model, **limit, **({} if "embed" in path or "rank" in path else greedy), **body}
    )


def spelled(text: str) -> list[str]:
    """Texts of token bytes: lists of numbers in JSON."""
    return [bytes(one).decode(errors="replace") for one in _byte_lists(_values(text))]


def _values(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def _byte_lists(value: Any) -> Iterator[list[int]]:
    if isinstance(value, dict):
        if isinstance(value.get("bytes"), list):
            yield value["bytes"]
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _byte_lists(one)


def usage_of(text: str) -> list[int]:
    """Output tokens, as the last value that has them says."""
    names = ("completion_tokens", "output_tokens", "eval_count", "predicted_n")
    found = [value for value in _walk(_values(text)) if isinstance(value, dict) and set(names) & set(value)]
    return [found[-1][name] for name in names if name in found[-1]]


def _walk(value: Any) -> Iterator[Any]:
    yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _walk(one)


@pytest.mark.parametrize("name", CASES)
def test_nothing_of_a_match_leaves(client: httpx.Client, name: str) -> None:
    path, body, ending = CASES[name]
    usage = {"stream_options": {"include_usage": True}} if path in (CHAT, TEXT) else {}
    whole, stream = ask(client, path, **body, stream=False), ask(client, path, **body, **usage, stream=True)
    for response in (whole, stream):
        assert response.status_code == 200, response.text
        assert ending in response.text.replace(": ", ":")
        shown = response.text.replace('"the secret', "") if name == "continued" else response.text
        assert not [leak for leak in LEAKS if leak in shown]
        assert not [one for one in spelled(response.text) if any(leak in one for leak in LEAKS)]
    # Charged as generated: with the tokens of the match.
    assert usage_of(whole.text) == usage_of(stream.text)
    assert usage_of(whole.text)[0] >= 5
    if name == "logprobs":
        choice = whole.json()["choices"][0]
        assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) < usage_of(whole.text)[0]
        assert choice["stop_reason"] == "words"


def test_an_upstream_s_answer_is_filtered(client: httpx.Client) -> None:
    for stream in (False, True):
        body = {"messages": ASK, "response_format": FORMAT, "stream": stream}
        response = ask(client, CHAT, "far", **body)
        assert '"finish_reason":"content_filter"' in response.text, response.text
        assert not [leak for leak in LEAKS if leak in response.text]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": BAD}),
        (TEXT, {"prompt": ["fine", "ORION"]}),
        (RESPONSES, {"input": "or\u200bion"}),
        (MESSAGES, {"messages": BAD, "max_tokens": 9}),
        ("/api/chat", {"messages": BAD}),
        ("/v1/embeddings", {"input": ["fine", "orion"]}),
        ("/api/embed", {"input": "orion"}),
        ("/v1/rerank", {"query": "q", "documents": ["fine", "of Orion"]}),
    ],
)
def test_a_match_in_a_request_is_refused(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    response = ask(client, path, **body)
    assert response.status_code == 400
    assert "the request matches the safety rule 'names'" in response.text
    assert "rion" not in response.text


def test_counting_tokens_needs_no_rules(client: httpx.Client) -> None:
    assert client.post("/tokenize", json={"model": "tiny", "prompt": "orion"}).status_code == 200
    assert client.post("/v1/messages/count_tokens", json={"model": "tiny", "messages": BAD}).status_code == 200


def test_what_is_stored_has_no_match(client: httpx.Client) -> None:
    chat = ask(client, CHAT, messages=ASK, response_format=FORMAT, store=True).json()["id"]
    text = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
    sent = ask(client, RESPONSES, input="hello", text=text, stream=True)
    name = _values(sent.text)[0]["response"]["id"]
    stored = [
        client.get(f"{CHAT}/{chat}"),
        client.get(f"{CHAT}/{chat}/messages"),
        client.get(f"{RESPONSES}/{name}"),
        client.get(f"{RESPONSES}/{name}?stream=true"),
        client.get(f"{RESPONSES}/{name}/input_items"),
    ]
    for response in stored:
        assert response.status_code == 200, response.text
        assert not [leak for leak in LEAKS if leak in response.text]
    assert stored[3].text == sent.text  # a replayed stream is the one that was sent
    assert ask(client, CHAT, messages=BAD, store=True).status_code == 400
    assert ask(client, RESPONSES, input="orion").status_code == 400
    # What was cut off does not come back in the conversation.
    after = ask(client, RESPONSES, input="go on", previous_response_id=name, max_output_tokens=16)
    assert after.status_code == 200


def test_lines_of_a_batch(client: httpx.Client) -> None:
    bodies = {"fine": {"messages": ASK}, "bad": {"messages": BAD}, "cut": {"messages": ASK, "response_format": FORMAT}}
    lines = [
        {"custom_id": name, "method": "POST", "url": CHAT, "body": {"model": "tiny", "max_tokens": 40, **body}}
        for name, body in bodies.items()
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = client.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"}).json()["id"]
    batch = client.post(
        "/v1/batches", json={"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    ).json()

    def ended() -> dict[str, Any] | None:
        found: dict[str, Any] = client.get(f"/v1/batches/{batch['id']}").json()
        return found if found["status"] == "completed" else None

    done = until(ended, "the end of the batch")
    assert done is not None
    assert done["request_counts"] == {"completed": 2, "failed": 1, "total": 3}
    output = client.get(f"/v1/files/{done['output_file_id']}/content").text
    errors = client.get(f"/v1/files/{done['error_file_id']}/content").text
    found = {one["custom_id"]: one["response"]["body"] for one in _values(output)}
    assert found["cut"]["choices"][0]["finish_reason"] == "content_filter"
    assert found["fine"]["choices"][0]["finish_reason"] != "content_filter"
    assert not [leak for leak in LEAKS if leak in output]
    assert "the safety rule 'names'" in errors
    assert "rion" not in errors


def test_a_client_that_leaves_at_a_match_leaves_nothing_behind(guarded: Server, client: httpx.Client) -> None:
    body = {"model": "tiny", "messages": ASK, "response_format": FORMAT, "stream": True, "n": 4, "max_tokens": 99}
    with client.stream("POST", CHAT, json=body) as response:
        next(response.iter_bytes())
    until(guarded.idle, "the end of what the client left")


def test_hits_are_visible_and_their_texts_are_not(guarded: Server, client: httpx.Client) -> None:
    assert ask(client, CHAT, messages=BAD).status_code == 400
    refused = ask(client, CHAT, messages=ASK, response_format=FORMAT).headers["x-request-id"]
    metrics = guarded.metrics()
    assert metrics["penstock_safety_hits_total{rule=words,where=output}"] >= 1
    assert metrics["penstock_safety_hits_total{rule=names,where=input}"] >= 1
    until(lambda: client.get(f"/observe/requests/{refused}").status_code == 200, "the record")
    record = client.get(f"/observe/requests/{refused}").json()
    assert [(hit["rule"], hit["where"], hit["part"]) for hit in record["safety"]] == [("words", "output", "text")]
    seen = [
        json.dumps(record),
        client.get("/observe/requests?limit=100").text,
        client.get("/metrics").text,
        client.get(f"/observe/requests/{refused}/trace").text,
        guarded.log,
    ]
    for text in seen:
        assert not [leak for leak in (*LEAKS, "rion") if leak in text]
    assert "matches the safety rule words" in guarded.log


# --- reasoning


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A model that only thinks, under a rule that no four letters in a row may leave."""
    folder = tiny_models.make_thinking(tmp_path_factory.mktemp("thinker"))
    rules = folder / "penstock.toml"
    rules.write_text("[[safety]]\nname = 'thoughts'\npatterns = ['[^\\n]{4}']\non = 'output'\n")
    server = Server(folder, f"--config={rules}", "--kv-memory", "20MB")
    with server, httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "fields", "ending"),
    [
        (CHAT, ("reasoning_content", "reasoning_content"), '"finish_reason":"content_filter"'),
        (MESSAGES, ("thinking", "thinking"), '"stop_reason":"refusal"'),
        (RESPONSES, ("text", "delta"), '"reason":"content_filter"'),
        ("/api/chat", ("thinking", "thinking"), '"done_reason":"content_filter"'),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_nothing_of_a_match_in_the_reasoning_leaves(
    thinker: httpx.Client, path: str, fields: tuple[str, str], ending: str, stream: bool
) -> None:
    asked = {"input": "hello"} if path == RESPONSES else {"messages": ASK}
    limit = {"max_tokens": 40} if path in (CHAT, MESSAGES) else {}
    greedy = {"options": {"temperature": 0}} if path == "/api/chat" else {"temperature": 0}  # drawn, it may end at once
    response = thinker.post(path, json={"model": thinker.get("/v1/models").json()["data"][0]["id"],
                                        **asked, **limit, **greedy, "stream": stream})  # fmt: skip
    assert response.status_code == 200, response.text
    assert ending in response.text.replace(": ", ":")
    objects = [one for one in _walk(_values(response.text)) if isinstance(one, dict)]
    thought = "".join(one[fields[stream]] for one in objects if isinstance(one.get(fields[stream]), str))
    assert re.search("[^\n]{4}", thought) is None
    record = until(lambda: _record(thinker, response.headers["x-request-id"]), "the record")
    assert record is not None
    assert [(hit["rule"], hit["part"]) for hit in record["safety"]] == [("thoughts", "reasoning")]


def _record(client: httpx.Client, name: str) -> dict[str, Any] | None:
    response = client.get(f"/observe/requests/{name}")
    found: dict[str, Any] = response.json()
    return found if response.status_code == 200 else None
