"""The real ollama package against a real server: what it gets is what the library gives for the same model."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema_rs
import ollama
import pytest

from helpers.server_process import PATIENCE_S, Server, until
from helpers.tiny_models import LONG_CONTEXT
from penstock import LLM, SamplingParams

TALK: list[Any] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "Where is Zürich? 🏔"}]
GREEDY: dict[str, Any] = {"temperature": 0, "num_predict": 24}
PARAMS = SamplingParams(temperature=0.0, max_tokens=24)
REASONS = {"length": "length", "end": "stop"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"town": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["town", "days"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[ollama.Client]:
    with ollama.Client(server.url, timeout=PATIENCE_S) as client:
        yield client


def post(server: Server, path: str, body: dict[str, Any], **options: Any) -> httpx.Response:
    return httpx.post(server.url + path, json={"model": server.model, **body}, timeout=PATIENCE_S, **options)


def refused(response: httpx.Response) -> str:
    (message,) = response.json().values()
    assert set(response.json()) == {"error"}
    return str(message)


# --- chat and generate


def test_a_chat(server: Server, client: ollama.Client, llm: LLM) -> None:
    answer = client.chat(server.model, TALK, options=GREEDY)
    wanted = llm.chat(TALK, PARAMS)
    assert answer.message.content == wanted.text
    assert (answer.model, answer.message.role, answer.done) == (server.model, "assistant", True)
    assert answer.done_reason == REASONS[wanted.finish]
    assert (answer.prompt_eval_count, answer.eval_count) == (len(wanted.prompt_tokens), len(wanted.tokens))
    assert answer.total_duration >= answer.prompt_eval_duration + answer.eval_duration > 0  # type: ignore[operator]


def test_a_stream_is_the_whole_in_pieces(server: Server, client: ollama.Client) -> None:
    whole = client.chat(f"{server.model}:latest", TALK, options=GREEDY)
    *pieces, last = client.chat(server.model, TALK, options=GREEDY, stream=True)
    assert "".join(piece.message.content or "" for piece in pieces) == whole.message.content
    assert not any(piece.done for piece in pieces)
    assert (last.done, last.done_reason, last.message.content) == (True, whole.done_reason, "")
    assert (last.prompt_eval_count, last.eval_count) == (whole.prompt_eval_count, whole.eval_count)
    body = {"model": server.model, "messages": TALK, "options": GREEDY}
    with httpx.stream("POST", f"{server.url}/api/chat", json=body, timeout=PATIENCE_S) as raw:
        assert raw.headers["content-type"] == "application/x-ndjson"
        assert all(json.loads(line)["message"]["role"] == "assistant" for line in raw.iter_lines())


def test_generate(server: Server, client: ollama.Client, llm: LLM) -> None:
    system, user = TALK[0]["content"], TALK[1]["content"]
    assert client.generate(server.model, user, system=system, options=GREEDY).response == llm.chat(TALK, PARAMS).text
    raw = client.generate(server.model, user, raw=True, options=GREEDY)
    assert raw.response == llm.generate(user, PARAMS).text
    *pieces, last = client.generate(server.model, user, raw=True, options=GREEDY, stream=True)
    assert "".join(piece.response or "" for piece in pieces) == raw.response
    assert last.eval_count == raw.eval_count


def test_async(server: Server, client: ollama.Client) -> None:
    wanted = client.chat(server.model, TALK, options=GREEDY).message.content

    async def ask() -> None:
        async with ollama.AsyncClient(server.url, timeout=PATIENCE_S) as client:
            request: dict[str, Any] = {"model": server.model, "messages": TALK, "options": GREEDY}
            stream, *answers = await asyncio.gather(
                client.chat(**request, stream=True), *[client.chat(**request) for _ in range(4)]
            )
            assert [answer.message.content for answer in answers] == [wanted] * 4
            assert "".join([piece.message.content or "" async for piece in stream]) == wanted
            assert (await client.list()).models[0].model == f"{server.model}:latest"

    asyncio.run(ask())


def test_options_are_honoured(server: Server, client: ollama.Client) -> None:
    warm = {"temperature": 2, "seed": 5, "num_predict": 16}
    first, second, other = [
        client.chat(server.model, TALK, options=options) for options in (warm, warm, {**warm, "seed": 6})
    ]
    assert first.message.content == second.message.content != other.message.content
    text = client.chat(server.model, TALK, options=GREEDY).message.content or ""
    stopped = client.chat(server.model, TALK, options={**GREEDY, "stop": [text[6:8]]})
    assert stopped.message.content == text[: text.index(text[6:8])]
    assert stopped.done_reason == "stop"


def test_the_answer_is_held_to_a_format(server: Server, client: ollama.Client) -> None:
    options = {"num_predict": 400, "temperature": 0}
    answer = client.chat(server.model, TALK, format=SCHEMA, options=options)
    jsonschema_rs.validate(SCHEMA, json.loads(answer.message.content or ""))
    response = client.generate(server.model, "a", format=SCHEMA, options=options).response
    jsonschema_rs.validate(SCHEMA, json.loads(response or ""))
    begun = client.chat(server.model, TALK, format="json", options={**options, "num_predict": 8}).message.content
    assert (begun or "").lstrip().startswith("{")


def test_log_probabilities(server: Server, client: ollama.Client) -> None:
    answer = client.chat(server.model, TALK, options=GREEDY, logprobs=True, top_logprobs=2)
    assert answer.logprobs is not None
    assert all(len(entry.top_logprobs or ()) == 2 for entry in answer.logprobs)
    pieces = list(client.chat(server.model, TALK, options=GREEDY, logprobs=True, stream=True))
    assert [entry.logprob for piece in pieces for entry in piece.logprobs or ()] == [
        pytest.approx(entry.logprob, abs=1e-4) for entry in answer.logprobs
    ]


def test_a_conversation_with_tools(server: Server, client: ollama.Client) -> None:
    """A random model calls none; what came of a call is taken back all the same."""

    def weather(town: str, days: int = 1) -> str:
        """The weather of a town.

        Args:
            town: Its name.
            days: How far ahead.
        """
        return "rain"

    call = ollama.Message.ToolCall(function=ollama.Message.ToolCall.Function(name="weather", arguments={"town": "Ur"}))
    talk = [
        *TALK,
        ollama.Message(role="assistant", tool_calls=[call]),
        ollama.Message(role="tool", content="rain", tool_name="weather"),
    ]
    answer = client.chat(server.model, talk, tools=[weather], options=GREEDY)
    assert answer.prompt_eval_count is not None
    assert answer.prompt_eval_count > client.chat(server.model, TALK, options=GREEDY).prompt_eval_count  # type: ignore[operator]


def test_num_predict_is_cut_to_what_the_context_holds(server: Server, client: ollama.Client) -> None:
    """Editors send more than is left: to Ollama it is a bound, not a wish."""
    stop = client.chat(server.model, TALK, options=GREEDY).message.content or ""
    answer = client.chat(server.model, TALK, options={**GREEDY, "num_predict": LONG_CONTEXT, "stop": stop[3:5]})
    assert answer.done_reason == "stop"


# --- loading


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_a_request_without_a_prompt_says_that_the_model_is_loaded(server: Server, path: str) -> None:
    before = server.metric("prompt_tokens_total")
    for body, warned in (({}, False), ({"keep_alive": "5m"}, False), ({"keep_alive": 0, "stream": False}, True)):
        answer = post(server, path, body)
        assert (answer.status_code, answer.json()["done_reason"], answer.json()["done"]) == (200, "load", True)
        assert ("keep_alive" in answer.headers.get("x-penstock-warnings", "")) is warned
    assert server.metric("prompt_tokens_total") == before
    listed = httpx.get(f"{server.url}/observe/requests?kind=ollama&limit=1", timeout=PATIENCE_S).json()
    assert [(one["finish"], one["state"]) for one in listed["requests"]] == [("end", "done")]


def test_what_was_accepted_without_effect_is_in_a_header(server: Server) -> None:
    options = {**GREEDY, "num_ctx": 1 << 20, "num_gpu": 1}
    for stream in (True, False):
        answer = post(server, "/api/chat", {"messages": TALK, "options": options, "stream": stream})
        warned = answer.headers["x-penstock-warnings"]
        assert f"options.num_ctx is {1 << 20}, but this server's context is {LONG_CONTEXT}" in warned
        assert "options.num_gpu has no effect" in warned
    plain = post(server, "/api/chat", {"messages": TALK, "options": {**GREEDY, "num_ctx": 4096}, "keep_alive": -1})
    assert "x-penstock-warnings" not in plain.headers


# --- embeddings and models


def test_embeddings(server: Server, client: ollama.Client, llm: LLM) -> None:
    wanted = llm.embed(["a river", "a turbine"])
    answer = client.embed(server.model, ["a river", "a turbine"])
    assert [list(vector) for vector in answer.embeddings] == [pytest.approx(one.vector, abs=1e-6) for one in wanted]
    assert answer.prompt_eval_count == sum(one.prompt_tokens for one in wanted)
    assert client.embeddings(server.model, "a river").embedding == pytest.approx(wanted[0].vector, abs=1e-6)
    assert len(client.embed(server.model, "a river", dimensions=8).embeddings[0]) == 8
    assert client.embed(server.model, "").embeddings == []


def test_what_there_is(server: Server, client: ollama.Client) -> None:
    (model,) = client.list().models
    (running,) = client.ps().models
    assert model.model == running.model == f"{server.model}:latest"
    assert model.digest == running.digest
    assert model.details is not None
    assert (model.details.family, model.details.format) == ("llama", "safetensors")
    assert running.context_length == LONG_CONTEXT
    shown = client.show(server.model)
    assert shown.capabilities == ["completion", "tools", "embedding"]
    assert (shown.modelinfo or {})["llama.context_length"] == LONG_CONTEXT
    version = httpx.get(f"{server.url}/api/version", timeout=PATIENCE_S).json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)
    # The same name is good for the other APIs: there are clients that speak both.
    with server.client() as other:
        assert other.completions.create(model=model.model or "", prompt="a", max_tokens=1).model == server.model


def test_pull(server: Server, client: ollama.Client) -> None:
    assert [part.status for part in client.pull(server.model, stream=True)][-1] == "success"
    assert client.pull(server.model).status == "success"
    with pytest.raises(ollama.ResponseError, match="not in the catalogue") as caught:
        client.pull("no-such-model")
    assert caught.value.status_code == 404


@pytest.mark.parametrize("accept", ["*/*", "application/json", None])
def test_the_root_is_what_clients_look_for(server: Server, accept: str | None) -> None:
    with httpx.Client(timeout=PATIENCE_S) as http:
        http.headers.pop("accept")
        headers = {} if accept is None else {"accept": accept}
        answer = http.get(server.url, headers=headers)
        assert (answer.status_code, answer.text) == (200, "Ollama is running")
        assert http.head(server.url, headers=headers).status_code == 200


# --- what is refused


@pytest.mark.parametrize(
    ("ask", "status", "words"),
    [
        (lambda c, m: c.chat("nobody", TALK), 404, 'model "nobody" not found'),
        (lambda c, m: list(c.chat("nobody", TALK, stream=True)), 404, "not found"),
        (lambda c, m: c.show("nobody"), 404, "not found"),
        (lambda c, m: c.embed("nobody", "a"), 404, "not found"),
        (lambda c, m: c.chat(m, TALK, options={"mirostat": 1}), 400, "options.mirostat is not supported"),
        (lambda c, m: c.chat(m, TALK, options={"top_j": 1}), 400, "options.top_j is not a known field"),
        (lambda c, m: c.chat(m, TALK, think=True), 400, "think is not supported"),
        (lambda c, m: c.chat(m, [{**TALK[1], "images": [b"png"]}]), 400, r"messages\[0\].images is not supported"),
        (lambda c, m: c.chat(m, TALK, format={"type": "nothing"}), 400, "format"),
        (lambda c, m: c.generate(m, "a", suffix="b"), 400, "suffix is not supported"),
        (lambda c, m: c.generate(m, "a", context=[1]), 400, "context is not supported"),
        (lambda c, m: c.generate(m, "a " * LONG_CONTEXT), 400, "prompt"),
        (lambda c, m: c.embed(m, "a", dimensions=999), 400, "dimensions is 999"),
        (lambda c, m: c.delete(m), 400, "deleting a model is not supported"),
        (lambda c, m: c.copy(m, "b"), 400, "copying a model is not supported"),
        (lambda c, m: c.create("b", from_=m), 400, "creating a model is not supported"),
        (lambda c, m: c.push(m), 400, "pushing a model is not supported"),
        (lambda c, m: c._request_raw("POST", "/api/blobs/sha256:1", content=b"x"), 400, "uploading a blob"),
        (lambda c, m: c._request_raw("GET", "/api/blobs/sha256:1"), 404, "no blobs"),
        (lambda c, m: c._request_raw("POST", "/api/me"), 404, "there is no route POST /api/me"),
        (lambda c, m: c._request_raw("GET", "/api/chat"), 405, "does not accept GET"),
    ],
)
def test_errors_are_told_in_ollamas_way(
    server: Server, client: ollama.Client, ask: Any, status: int, words: str
) -> None:
    with pytest.raises(ollama.ResponseError, match=words) as caught:
        ask(client, server.model)
    assert caught.value.status_code == status
    assert caught.value.error != ""


def test_what_is_not_said_to_be_json_is_taken_unless_a_page_sends_it(server: Server) -> None:
    """As `curl -d` sends it, which much of what speaks Ollama's API is made of."""
    plain = {"content-type": "application/x-www-form-urlencoded"}
    body = json.dumps({"model": server.model, "messages": TALK, "options": GREEDY}).encode()
    url = f"{server.url}/api/chat"
    assert httpx.post(url, content=body, headers=plain, timeout=PATIENCE_S).status_code == 200
    for said in ({"origin": "https://x.example"}, {"sec-fetch-site": "cross-site"}, {"referer": "https://x.example/"}):
        answer = httpx.post(url, content=body, headers={**plain, **said}, timeout=PATIENCE_S)
        assert answer.status_code == 415
        assert "application/json" in refused(answer)


def test_a_client_that_leaves(server: Server) -> None:
    endless = {"type": "array", "items": {"type": "integer"}, "minItems": 20_000}
    body = {"model": server.model, "messages": TALK, "format": endless}
    with httpx.stream("POST", f"{server.url}/api/chat", json=body, timeout=PATIENCE_S) as response:
        next(response.iter_lines())
    until(server.idle, "the end of the request")
