"""What goes over the wire, as curl and httpx see it: framing, statuses, error bodies, keys, sizes."""

import contextlib
import json
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.server_process import PATIENCE_S, Server, command, environment, until
from helpers.tiny_models import LONG_CONTEXT

PAGE = "https://app.example"
KEYS = ("first-key", "second-key")
CONTEXT = 96
MESSAGES_WITH_NUL = [{"role": "user", "content": "a\0b"}]


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http:
        yield http


@pytest.fixture(scope="module")
def strict(tiny: Path) -> Iterator[Server]:
    """With keys, a short context, small bodies, an application elsewhere, and a variable that nobody knows."""
    options = ("--max-body", "2kB", "--context", CONTEXT, "--allow-origin", PAGE)
    with Server(tiny, *options, api_key=",".join(KEYS), blok_size="secret") as server:
        yield server


def curl(*arguments: str) -> bytes:
    done = subprocess.run(["curl", "--silent", "--show-error", "--no-buffer", *arguments], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def post(url: str, body: dict[str, Any], *arguments: str) -> bytes:
    return curl("--json", json.dumps(body), *arguments, url)


def error(response: httpx.Response) -> dict[str, Any]:
    """The body of an error, which has exactly these members."""
    assert response.headers["content-type"] == "application/json"
    (told,) = response.json().values()
    assert set(told) == {"message", "type", "param", "code"}
    assert "Traceback" not in told["message"]
    return dict(told)


def events(stream: bytes) -> list[Any]:
    """Of a stream that is frame_events to the byte: one line of data and an empty line each, and the end mark."""
    *lines, rest = stream.split(b"\n\n")
    assert rest == b""
    assert all(line.startswith(b"data: ") and b"\n" not in line and b"\r" not in line for line in lines)
    *data, mark = [line.removeprefix(b"data: ") for line in lines]
    assert mark == b"[DONE]"
    return [json.loads(text) for text in data]


# --- streams


def test_the_events_of_a_chat(server: Server) -> None:
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 40,
        "stream": True,
        "stream_options": {"include_usage": True},
        "seed": 3,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    head, _, stream = post(f"{server.api}/chat/completions", body, "--include").partition(b"\r\n\r\n")
    headers = head.decode().lower().split("\r\n")
    assert headers[0] == "http/1.1 200 ok"
    assert "content-type: text/event-stream; charset=utf-8" in headers
    assert "cache-control: no-cache" in headers
    assert "x-accel-buffering: no" in headers
    first, *tokens, end, usage = events(stream)
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert (end["choices"][0]["delta"], end["choices"][0]["finish_reason"]) == ({}, "length")
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 40
    assert all(event["usage"] is None for event in (first, *tokens, end))
    sizes = [len(event["choices"][0]["token_ids"]) for event in tokens]
    assert sum(sizes) == 40
    assert all(sizes)  # several may share an event: so small a model is quicker than its client


def test_a_client_that_keeps_up_gets_each_token_by_itself(server: Server) -> None:
    """Beside long prompts, whose steps leave it the time: the stream queues behind one, the others behind it."""
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 40, "ignore_eos": True, "stream": True}
    long = {"model": server.model, "input": [[2] * 16_000]}
    longer = {"model": server.model, "input": [[3] * 8_000] * 3}
    with ThreadPoolExecutor() as threads:
        first = threads.submit(post, f"{server.api}/embeddings", long)
        until(lambda: server.metric("num_requests_running") or first.done(), "the first long prompt")
        url, body = f"{server.api}/chat/completions", {**chat, "model": server.model, "return_token_ids": True}
        stream = threads.submit(post, url, body)
        until(lambda: server.metric("num_requests_waiting") or stream.done(), "the stream in the queue")
        threads.submit(post, f"{server.api}/embeddings", longer)
        _, *tokens, _ = events(stream.result())
    sizes = [len(event["choices"][0]["token_ids"]) for event in tokens]
    assert sum(sizes) == 40
    assert sizes.count(1) > 20, sizes  # two meet where the machine is busy with something else: the exception


def test_a_stream_without_extras(server: Server) -> None:
    body = {"model": server.model, "prompt": "a", "max_tokens": 3, "stream": True, "ignore_eos": True}
    chunks = events(post(f"{server.api}/completions", body))
    assert {frozenset(chunk) for chunk in chunks} == {frozenset(("id", "object", "created", "model", "choices"))}
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_curl_without_a_stream(server: Server) -> None:
    body = {"model": server.model, "prompt": ["a", "b"], "max_tokens": 2, "n": 2}
    answer = json.loads(post(f"{server.api}/completions", body))
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]


# --- bodies that are wrong

BROKEN = {
    "nothing": b"",
    "half an object": b'{"model": "x", ',
    "a list": b"[]",
    "null": b"null",
    "text": b"model=x",
    "no UTF-8": b'{"model": "\xff"}',
    "half a surrogate pair": b'{"model": "\\ud800"}',
    "not a number": b'{"temperature": NaN}',
    "a member twice": b'{"n": 1, "n": 2}',
    "depth": b'{"messages": ' + b"[" * 50_000,
    "a huge integer": b'{"n": 1' + b"0" * 5000 + b"}",
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
def test_broken_bodies(http: httpx.Client, path: str, body: bytes) -> None:
    response = http.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert error(response)["type"] == "invalid_request_error"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
def test_only_json_is_taken_for_json(server: Server, http: httpx.Client, kind: str | None) -> None:
    """Browsers send these from any page without asking the server first."""
    body = json.dumps({"model": server.model, "prompt": "a", "max_tokens": 1})
    headers = {} if kind is None else {"content-type": kind}
    response = http.post("/v1/completions", content=body, headers=headers)
    assert response.status_code == 415
    assert "application/json" in error(response)["message"]


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON"])
def test_ways_to_say_json(server: Server, http: httpx.Client, kind: str) -> None:
    body = json.dumps({"model": server.model, "prompt": "a", "max_tokens": 1})
    assert http.post("/v1/completions", content=body, headers={"content-type": kind}).status_code == 200


def test_bodies_that_are_too_large(strict: Server) -> None:
    def endless() -> Iterator[bytes]:
        yield b'{"model": "'
        for _ in range(64):
            yield b"x" * 4096

    headers = {"authorization": f"Bearer {KEYS[0]}", "content-type": "application/json"}
    with httpx.Client(base_url=strict.url, headers=headers, timeout=PATIENCE_S) as http:
        fits = http.post("/v1/completions", json={"model": strict.model, "prompt": "a" * 50, "user": "b" * 1800})
        assert fits.status_code == 200
        for body in (b"x" * 2001, endless()):
            response = http.post("/v1/completions", content=body)
            assert response.status_code == 413
            assert error(response)["code"] == "request_too_large"
    told = post(f"{strict.api}/completions", {"user": "x" * 5000}, "-H", f"Authorization: Bearer {KEYS[0]}")
    assert json.loads(told)["error"]["code"] == "request_too_large"


def test_a_long_prompt_is_tokenized_beside_the_event_loop(server: Server, http: httpx.Client) -> None:
    text = "ta" * 10_100
    counted = http.post("/tokenize", json={"prompt": text}).json()["count"]
    body = {"model": server.model, "prompt": text, "max_tokens": 1}
    assert http.post("/v1/completions", json=body).json()["usage"]["prompt_tokens"] == counted


def test_a_huge_prompt_does_not_hold_up_the_others(server: Server, http: httpx.Client) -> None:
    body = {"model": server.model, "prompt": "ta" * 2_000_000}
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(httpx.post, f"{server.api}/completions", json=body, timeout=PATIENCE_S)
        answered = 0
        while not asked.done():
            http.get("/health")
            answered += 1
    assert error(asked.result())["code"] == "context_length_exceeded"
    assert answered > 10


def test_too_many_answers_at_once(server: Server, http: httpx.Client) -> None:
    body = {"model": server.model, "prompt": [[5]] * 2048, "n": 128}
    response = http.post("/v1/completions", json=body)
    assert (response.status_code, error(response)["param"]) == (400, "n")


# --- paths and methods


@pytest.mark.parametrize("path", ["/v1", "/v1/chat", "/v1/models/", "/nothing", "/v1/engines", "/health/"])
def test_unknown_paths(http: httpx.Client, path: str) -> None:
    response = http.get(path)
    assert response.status_code == 404
    assert path in error(response)["message"] or error(response)["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/chat/completions", "GET, HEAD, POST"),
        ("PUT", "/v1/completions", "POST"),
        ("DELETE", "/v1/models", "GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
        ("HEAD", "/tokenize", "POST"),
        ("PATCH", "/ready", "GET, HEAD"),
        ("PUT", "/v1/responses/input_tokens", "POST"),
        ("PUT", "/v1/responses/resp_0", "DELETE, GET, HEAD"),
    ],
)
def test_wrong_methods(http: httpx.Client, method: str, path: str, allowed: str) -> None:
    response = http.request(method, path)
    assert response.status_code == 405
    assert response.headers["allow"] == allowed
    if method == "HEAD":
        assert response.content == b""
    else:
        assert error(response)["code"] == "method_not_allowed"
        assert f"only {allowed}" in error(response)["message"]


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models", "/metrics", "/ui/", "/observe/live", "/nothing"])
def test_headers_alone(http: httpx.Client, path: str) -> None:
    """As of GET, also of what never ends; the connection is good for the next request."""
    with http.stream("GET", path) as whole:
        pass
    head = http.head(path)
    assert (head.status_code, head.headers["content-type"]) == (whole.status_code, whole.headers["content-type"])
    assert head.content == b""
    assert http.get("/health").status_code == 200


def test_the_root_leads_to_the_interface(strict: Server) -> None:
    as_a_browser = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}  # it has no key
    response = httpx.get(strict.url, headers=as_a_browser, timeout=PATIENCE_S)
    assert (response.status_code, response.headers["location"]) == (307, "/ui/")


def test_packed_bodies(http: httpx.Client) -> None:
    response = http.post("/v1/completions", json={}, headers={"content-encoding": "gzip"})
    assert (response.status_code, error(response)["code"]) == (415, "media_type_unsupported")
    assert "content-encoding: gzip" in error(response)["message"]


def test_a_prompt_of_several_answers_is_counted_once(server: Server, http: httpx.Client) -> None:
    counted = ("prompt_tokens_total", "cached_tokens_total", "generation_tokens_total")
    before = {name: server.metric(name) for name in counted}
    asked = {"model": server.model, "prompt": ["counted once", "and so is this"], "n": 3, "max_tokens": 2}
    usage = http.post("/v1/completions", json={**asked, "ignore_eos": True}).json()["usage"]
    told = (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"])
    assert tuple(server.metric(name) - before[name] for name in counted) == told


@pytest.mark.parametrize("lines", [b"x: " + b"a" * (1 << 22), b"x: y\r\n" * (1 << 19), b""])
def test_headers_without_end(strict: Server, lines: bytes) -> None:
    """Nobody has shown a key by then. What a body may have is not what they may."""
    with (
        httpx.Client(base_url=strict.url, timeout=PATIENCE_S) as http,
        socket.create_connection((http.base_url.host, http.base_url.port or 0), timeout=PATIENCE_S) as wire,
    ):
        with contextlib.suppress(ConnectionError):  # it does not read to the end
            wire.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n" + lines + (b"" if lines else b"\r\n"))
        with contextlib.suppress(ConnectionError):
            assert wire.recv(1 << 10).startswith(b"HTTP/1.1 431" if lines else b"HTTP/1.1 200")
        assert http.get("/health").status_code == 200


def test_nobody_writes_lines_into_the_log(server: Server, http: httpx.Client) -> None:
    http.get("/nothing%0Aforged", headers={"x-request-id": "an id with spaces is not taken"})
    until(lambda: "/nothing%0Aforged" in server.log, "the line in the log")
    assert not any(line.startswith("forged") for line in server.log.splitlines())
    assert "with spaces" not in server.log


# --- what operators ask


def test_states(server: Server, http: httpx.Client) -> None:
    assert http.get("/health").json() == {"status": "ok"}
    assert http.get("/ready").json() == {"status": "ready"}
    version = http.get("/version").json()
    assert (version["model"], version["device"], version["context"]) == (server.model, "cpu", LONG_CONTEXT)
    metrics = server.metrics()
    assert metrics["penstock_ready"] == 1
    assert metrics["penstock_engine_restarts"] == 0


def test_tokens_there_and_back(http: httpx.Client) -> None:
    text = "Straße 🏔 </s>"
    tokens = http.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"])
    assert http.post("/detokenize", json={"tokens": tokens["tokens"]}).json()["prompt"] == text
    talk = [{"role": "user", "content": "hi"}]
    tokens = http.post("/tokenize", json={"messages": talk}).json()["tokens"]
    assert http.post("/detokenize", json={"tokens": tokens}).json()["prompt"] == "<s>[user] hi\n[assistant] "
    wrong = http.post("/detokenize", json={"tokens": [99_999]})
    assert (wrong.status_code, error(wrong)["param"]) == (400, "tokens")


_LONG = "word " * 200_000
_LONG_TALK = [{"role": "user", "content": _LONG}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": _LONG}),
        ("/tokenize", {"messages": _LONG_TALK}),
        ("/v1/messages/count_tokens", {"messages": _LONG_TALK}),
        ("/plan/budget", {"documents": [_LONG]}),
        ("/plan/budget", {"history": _LONG_TALK, "user": "hi"}),
        ("/observe/cache/explain", {"prompt": _LONG}),
        ("/observe/lab", {"prompt": _LONG}),
    ],
)
def test_what_cannot_fit_the_context_is_not_counted_either(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    response = http.post(path, json=body)
    assert response.status_code == 400
    assert "characters, which are at least" in response.json()["error"]["message"]


def test_a_nul_in_a_prompt_is_text(http: httpx.Client) -> None:
    tokens = http.post("/tokenize", json={"prompt": "a\0b"}).json()["tokens"]
    assert http.post("/detokenize", json={"tokens": tokens}).json()["prompt"] == "a\0b"
    for path, said in (("completions", {"prompt": "a\0b"}), ("chat/completions", {"messages": MESSAGES_WITH_NUL})):
        answer = http.post(f"/v1/{path}", json={**said, "max_tokens": 1})
        assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 1)


def test_no_model_means_the_only_one(server: Server, http: httpx.Client) -> None:
    said = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    asked: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": said,
        "/v1/completions": {"prompt": "hi", "max_tokens": 1},
        "/v1/responses": {"input": "hi", "max_output_tokens": 1, "store": False},
        "/v1/messages": said,
        "/v1/embeddings": {"input": "hi"},
    }
    for path, body in asked.items():
        assert http.post(path, json=body).json()["model"] == server.model
        wrong = http.post(path, json={**body, "model": "gpt-4"})
        assert (wrong.status_code, "gpt-4" in wrong.text) == (404, True)
    count = {"messages": said["messages"]}
    assert http.post("/v1/messages/count_tokens", json=count).json()["input_tokens"] > 0


def test_routes_without_a_version(server: Server, http: httpx.Client) -> None:
    assert http.get("/models").json() == http.get("/v1/models").json()
    assert http.get(f"/models/{server.model}").json()["id"] == server.model
    answer = http.post("/chat/completions", json={"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
    assert answer.json()["object"] == "chat.completion"
    # Anthropic's routes have Anthropic's errors.
    assert http.post("/messages", json={}).json()["type"] == "error"
    assert http.get("/completions").status_code == 405
    assert {path for path in http.get("/openapi.json").json()["paths"] if path.startswith(("/chat", "/mod"))} == set()


def test_tokenizer_info(http: httpx.Client) -> None:
    info = http.get("/tokenizer_info").json()
    tokens = http.post("/tokenize", json={"prompt": info["eos_token"], "add_special_tokens": False}).json()["tokens"]
    assert info["added_tokens_decoder"][str(tokens[0])]["content"] == info["eos_token"] == "</s>"
    assert "{%" in info["chat_template"]


def test_chat_runs_to_the_end_of_the_context(strict: Server) -> None:
    with strict.client(api_key=KEYS[1]) as client:
        talk: Any = [{"role": "user", "content": "hello"}]
        answer = client.chat.completions.create(model=strict.model, messages=talk, extra_body={"ignore_eos": True})
    assert answer.usage is not None
    assert answer.usage.total_tokens == CONTEXT
    assert answer.choices[0].finish_reason == "length"


# --- keys


@pytest.mark.parametrize("key", KEYS)
def test_each_key_opens_every_door(strict: Server, key: str) -> None:
    body = {"model": strict.model, "prompt": "a", "max_tokens": 1}
    with httpx.Client(base_url=strict.url, headers={"authorization": f"bearer {key}"}, timeout=PATIENCE_S) as http:
        for path in ("/v1/models", "/ready", "/version", "/metrics", "/docs", "/openapi.json"):
            assert http.get(path).status_code == 200
        assert http.post("/v1/completions", json=body).status_code == 200


@pytest.mark.parametrize(
    "given",
    [None, "Bearer wrong", "Bearer", f"Basic {KEYS[0]}", f"Bearer {','.join(KEYS)}", KEYS[0], "Bearer \xe9"],
)
def test_without_a_key_there_is_nothing_but_health(strict: Server, given: str | None) -> None:
    headers = {} if given is None else {"authorization": given.encode("latin-1")}
    with httpx.Client(base_url=strict.url, headers=headers, timeout=PATIENCE_S) as http:  # type: ignore[arg-type]
        assert [http.get(path).status_code for path in ("/health", "/ready")] == [200, 200]
        for path in ("/v1/models", "/models", "/v1/models/x", "/version", "/metrics", "/docs", "/openapi.json", "/x"):
            response = http.get(path)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert error(response)["code"] == "invalid_api_key"
        for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
            assert http.post(path, json={}).status_code == 401


def test_a_page_of_another_origin(strict: Server) -> None:
    """Its browser asks first; then the page may read the answer, its id, and errors."""
    body = {"model": strict.model, "prompt": "a", "max_tokens": 2, "stream": True}
    with httpx.Client(base_url=strict.api, headers={"origin": PAGE}, timeout=PATIENCE_S) as http:
        asking = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        allowed = http.options("/completions", headers=asking)
        assert (allowed.status_code, allowed.headers["access-control-allow-headers"]) == (200, "authorization")
        answer = http.post("/completions", json=body, headers={"authorization": f"Bearer {KEYS[0]}"})
        assert answer.text.endswith("data: [DONE]\n\n")
        for one in (allowed, answer, http.post("/completions", json=body)):
            assert one.headers["access-control-allow-origin"] == PAGE
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
    other = httpx.get(f"{strict.url}/health", headers={"origin": "https://x"}, timeout=PATIENCE_S)
    assert "access-control-allow-origin" not in other.headers


def test_a_variable_that_is_no_setting_is_named_once(strict: Server) -> None:
    assert strict.log.count("PENSTOCK_BLOK_SIZE (did you mean PENSTOCK_BLOCK_SIZE?)") == 1
    assert "secret" not in strict.log


def test_the_log_has_no_keys(strict: Server) -> None:
    assert not any(key in strict.log for key in KEYS)


def test_another_host_needs_a_key(tiny: Path) -> None:
    done = subprocess.run(command(tiny, "--host", "0.0.0.0"), env=environment(), capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: host 0.0.0.0 is not loopback")
    assert "api_key" in done.stderr
    assert "unprotected" in done.stderr
    assert done.stderr.count("\n") == 1


def test_or_says_that_none_is_wanted(tiny: Path) -> None:
    """127.0.0.2 is as foreign as any other address, but nobody else can reach it."""
    with Server(tiny, "--host", "127.0.0.2", "--unprotected") as server:
        assert "warning: every client that reaches 127.0.0.2 can use this server" in server.log
        assert server.status("/ready") == 200


# --- Anthropic's bodies

NOBODY = {"model": "nobody", "messages": [{"role": "user", "content": ""}]}
PLAIN = {"content-type": "text/plain"}
ANTHROPIC_ERRORS: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("POST", "/v1/messages", {"content": b"{"}, 400, "invalid_request_error"),
    ("POST", "/v1/messages", {"json": NOBODY}, 400, "invalid_request_error"),
    ("POST", "/v1/messages", {"json": {}, "headers": {"x-api-key": "wrong"}}, 401, "authentication_error"),
    ("POST", "/v1/messages/count_tokens", {"json": NOBODY}, 404, "not_found_error"),
    ("POST", "/v1/messages/batches", {"json": {}}, 404, "not_found_error"),
    ("GET", "/v1/messages", {}, 405, "invalid_request_error"),
    ("POST", "/v1/messages", {"content": b" " * 3000}, 413, "request_too_large"),
    ("POST", "/v1/messages", {"content": b"{}", "headers": PLAIN}, 415, "invalid_request_error"),
]


@pytest.mark.parametrize(("verb", "path", "request_", "status", "kind"), ANTHROPIC_ERRORS)
def test_errors_of_all_kinds_have_anthropics_body_on_its_paths(
    strict: Server, verb: str, path: str, request_: dict[str, Any], status: int, kind: str
) -> None:
    headers = {"x-api-key": KEYS[0], "content-type": "application/json", **request_.get("headers", {})}
    response = httpx.request(verb, strict.url + path, **{**request_, "headers": headers}, timeout=PATIENCE_S)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"type", "error", "request_id"}
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]


# --- Ollama's bodies

OLLAMA_ERRORS: list[tuple[str, str, dict[str, Any], int]] = [
    ("POST", "/api/chat", {"content": b"{"}, 400),
    ("POST", "/api/chat", {"json": {}, "headers": {"x-api-key": "wrong"}}, 401),
    ("GET", "/api/tags", {"headers": {"x-api-key": "wrong"}}, 401),
    ("GET", "/api/version", {"headers": {"x-api-key": "wrong"}}, 401),
    ("POST", "/api/chat", {"json": NOBODY}, 404),
    ("POST", "/api/nothing", {"json": {}}, 404),
    ("GET", "/api/chat", {}, 405),
    ("POST", "/api/chat", {"content": b" " * 3000}, 413),
    ("POST", "/api/chat", {"content": b"{}", "headers": {**PLAIN, "origin": PAGE}}, 415),
]


@pytest.mark.parametrize(("verb", "path", "request_", "status"), OLLAMA_ERRORS)
def test_errors_of_all_kinds_have_ollamas_body_on_its_paths(
    strict: Server, verb: str, path: str, request_: dict[str, Any], status: int
) -> None:
    headers = {"x-api-key": KEYS[0], "content-type": "application/json", **request_.get("headers", {})}
    response = httpx.request(verb, strict.url + path, **{**request_, "headers": headers}, timeout=PATIENCE_S)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert list(response.json()) == ["error"]


def test_the_key_of_either_kind_of_client(strict: Server) -> None:
    for headers in ({"x-api-key": KEYS[1]}, {"authorization": f"Bearer {KEYS[1]}"}):
        assert httpx.get(f"{strict.api}/models", headers=headers, timeout=PATIENCE_S).status_code == 200
