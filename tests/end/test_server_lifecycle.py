"""The start, the engine's death and return, a full queue, the server's end, and starts that fail."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from helpers import tiny_models
from helpers.server_process import (
    PATIENCE_S,
    GatedServer,
    Server,
    StartingServer,
    alive,
    command,
    environment,
    until,
)

ENDLESS: dict[str, Any] = {
    "prompt": "on and on",
    "max_tokens": tiny_models.ENDLESS_TOKENS,
    "extra_body": {"ignore_eos": True},
}
LONG_TOKENS = 8000  # some seconds, one by one
# Still running when two more requests have come to the queue, on a busy machine too.
UNFINISHED_TOKENS = 20_000
SHORT: dict[str, Any] = {"prompt": "once", "max_tokens": 8, "temperature": 0, "extra_body": {"ignore_eos": True}}


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads


class Stream:
    """A streamed completion through the SDK, of which the first tokens have come."""

    def __init__(self, client: openai.OpenAI, **request: Any) -> None:
        self.chunks = client.completions.create(**request, stream=True)
        next(self.chunks)

    def follow(self, events: int) -> None:
        for _ in range(events):
            next(self.chunks)

    def leave(self) -> None:
        self.chunks.close()

    def rest(self) -> tuple[str, str | None]:
        """Text and finish reason; raises what the SDK makes of an error event."""
        text, finish = "", None
        for chunk in self.chunks:
            text += chunk.choices[0].text
            finish = chunk.choices[0].finish_reason
        return text, finish


def waiting(server: Server) -> float:
    return server.metric("num_requests_waiting")


def whole(threads: ThreadPoolExecutor, client: openai.OpenAI, **request: Any) -> "Future[Any]":
    return threads.submit(client.completions.create, **request)


@pytest.fixture
def gated(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., GatedServer]:
    """Makes servers of the tiny model whose engines can be held, so that there is time to look at one without any."""
    return lambda *options: GatedServer(monkeypatch, tmp_path, tiny, "--kv-memory", "100MB", *options)


# --- the engine


def test_kill_9_under_load(gated: Callable[..., GatedServer], threads: ThreadPoolExecutor) -> None:
    with gated("--max-sequences", 2) as server, server.client() as client:
        endless, short = {"model": server.model, **ENDLESS}, {"model": server.model, **SHORT}
        calm = client.completions.create(**short).choices[0].text
        begun_whole = whole(threads, client, **{**endless, "max_tokens": UNFINISHED_TOKENS})
        until(lambda: server.metric("num_requests_running") == 1, "the start of the first request")
        begun_stream = Stream(client, **endless)
        begun_stream.follow(5)  # in steps it shares with the other one
        queued_whole = whole(threads, client, **short)
        queued_stream = threads.submit(lambda: list(client.completions.create(**short, stream=True)))
        until(lambda: waiting(server) == 2, "the queue")

        server.hold_engines()
        server.kill_engine()
        with pytest.raises(openai.APIError, match="signal 9") as caught:
            begun_stream.rest()
        assert caught.value.code == "engine_died"
        assert server.status("/ready") == 503
        assert server.status("/health") == 200
        with pytest.raises(openai.InternalServerError) as refused:
            client.completions.create(**short)
        assert (refused.value.status_code, refused.value.code) == (503, "engine_died")
        assert refused.value.response.headers["retry-after"]
        metrics = server.metrics()
        assert metrics["penstock_ready"] == 0
        server.let_start()

        assert queued_whole.result(PATIENCE_S).choices[0].text == calm
        assert "".join(chunk.choices[0].text for chunk in queued_stream.result(PATIENCE_S)) == calm
        # Its client had seen nothing of it.
        assert begun_whole.result(PATIENCE_S).usage.completion_tokens == UNFINISHED_TOKENS
        assert server.status("/ready") == 200
        assert client.completions.create(**short).choices[0].text == calm
        assert server.metric("engine_restarts") == 1
        until(server.idle, "the end of it all")
        assert "Traceback" not in server.log


def test_how_the_newer_apis_tell_of_it(gated: Callable[..., GatedServer]) -> None:
    """A stream that has begun ends in an event of theirs, a request that comes too early in an error of theirs."""
    with gated() as server, server.client() as client:
        claude = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=PATIENCE_S)
        said: Any = {
            "model": server.model,
            "messages": [{"role": "user", "content": "a"}],
            "max_tokens": tiny_models.ENDLESS_TOKENS,
        }
        long: Any = {
            "type": "json_schema",
            "schema": {"type": "array", "items": {"type": "integer"}, "minItems": 20_000},
        }
        messages = claude.messages.create(**said, output_config={"format": long}, stream=True)
        responses = client.responses.create(
            model=server.model, input="a", text={"format": {**long, "name": "long"}}, stream=True
        )
        next(messages)
        begun: Any = next(responses)
        server.hold_engines()
        server.kill_engine()

        with pytest.raises(anthropic.APIStatusError) as caught:
            list(messages)
        body: Any = caught.value.body
        assert (body["type"], body["error"]["type"]) == ("error", "overloaded_error")
        assert "signal 9" in body["error"]["message"]
        *_, last = responses
        failed: Any = last
        assert (failed.type, failed.response.status) == ("response.failed", "failed")
        assert "signal 9" in failed.response.error.message
        assert server.status(f"/v1/responses/{begun.response.id}") == 404  # nobody can go on from it

        with claude, pytest.raises(anthropic.APIStatusError) as caught:
            claude.messages.create(**said)
        assert (caught.value.status_code, caught.value.type) == (503, "overloaded_error")
        assert caught.value.response.headers["retry-after"]


def test_an_engine_that_hangs(tiny: Path, threads: ThreadPoolExecutor) -> None:
    """It is there, and stands still: its process is stopped in the middle of its work."""
    with Server(tiny, "--kv-memory", "100MB", "--max-sequences", 1, "--hang-s", 4) as server, server.client() as client:
        short = {"model": server.model, **SHORT}
        calm = client.completions.create(**short).choices[0].text
        begun = Stream(client, model=server.model, **ENDLESS)
        queued = whole(threads, client, **short)
        until(lambda: waiting(server) == 1, "the queue")
        (engine,) = server.engines()
        os.kill(engine, signal.SIGSTOP)
        with pytest.raises(openai.APIError, match="no sign of life for 4 s and was ended") as caught:
            begun.rest()
        assert caught.value.code == "engine_died"
        assert queued.result(PATIENCE_S).choices[0].text == calm
        assert not alive(engine)
        assert server.status("/ready") == 200
        assert server.metric("engine_restarts") == 1
        until(server.idle, "the end of it all")
        assert "no sign of life" in server.log
        assert "Traceback" not in server.log


def test_an_engine_that_dies_again_and_again(gated: Callable[..., GatedServer], threads: ThreadPoolExecutor) -> None:
    with gated("--max-sequences", 1) as server, server.client() as client:
        stream = Stream(client, model=server.model, **ENDLESS)
        queued = whole(threads, client, model=server.model, **SHORT)
        until(lambda: waiting(server) == 1, "the queue")
        first = server.engines()
        server.hold_engines()
        server.kill_engine()
        with pytest.raises(openai.APIError):
            stream.rest()
        assert not queued.done()
        (second,) = until(lambda: [pid for pid in server.engines() if pid not in first], "the next engine")
        os.kill(second, signal.SIGKILL)
        with pytest.raises(openai.InternalServerError, match="could not be started again"):
            queued.result(PATIENCE_S)  # it has waited for one engine, that is enough
        until(lambda: "starting another in 1.0 s" in server.log, "back-off")
        assert "starting another in 0.5 s" in server.log
        assert server.status("/ready") == 503
        server.signal()  # also while there is no engine to end
        assert server.wait() == 0
        assert "Traceback" not in server.log


def test_a_full_queue(tiny: Path) -> None:
    options = ("--kv-memory", "100MB", "--max-sequences", 1, "--max-waiting", 1)
    with Server(tiny, *options) as server, server.client() as client, ThreadPoolExecutor() as threads:
        running = Stream(client, model=server.model, **ENDLESS)
        late: Any = {**SHORT, "extra_body": {"timeout": 0.1}}  # before its turn comes
        (none,) = client.completions.create(model=server.model, **late).choices
        assert (none.text, none.finish_reason) == ("", "timeout")
        with pytest.raises(openai.RateLimitError):  # all of it, though one of its prompts would find room
            client.completions.create(model=server.model, **{**SHORT, "prompt": ["a", "b"]})
        until(lambda: waiting(server) == 0, "the end of what was taken of it")
        queued = whole(threads, client, model=server.model, **SHORT)
        until(lambda: waiting(server) == 1, "the queue")
        for stream in (False, True):
            with pytest.raises(openai.RateLimitError) as refused:
                client.completions.create(model=server.model, **SHORT, stream=stream)
            assert refused.value.code == "queue_full"
            assert int(refused.value.response.headers["retry-after"]) >= 1
        running.leave()
        assert queued.result(PATIENCE_S).choices[0].text
        until(server.idle, "the end of it all")
        both = client.completions.create(model=server.model, **{**SHORT, "prompt": ["a", "b"]})
        assert len(both.choices) == 2  # of which one found a slot, and one a place to wait
        with pytest.raises(openai.BadRequestError, match="3 choices") as never:  # so many never will
            client.completions.create(model=server.model, **{**ENDLESS, "prompt": ["a", "b", "c"]})
        assert never.value.param == "n"
        assert server.idle()


# --- the start


def test_before_the_model_is_loaded(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--kv-memory", "100MB", "--api-key", "secret")
    with (
        StartingServer(monkeypatch, tmp_path, tiny, *options) as server,
        httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http,
    ):
        health, ready = http.get("/health"), http.get("/ready")
        assert (health.status_code, health.json()) == (200, {"status": "ok", "phase": "starting the engine"})
        assert (ready.status_code, ready.json()) == (503, {"status": "starting", "phase": "starting the engine"})
        assert ready.headers["retry-after"] == "1"
        with server.client(api_key="secret") as client, pytest.raises(openai.InternalServerError) as early:
            client.completions.create(model=server.model, **SHORT)
        assert (early.value.status_code, early.value.code) == (503, "model_loading")
        assert early.value.response.headers["retry-after"] == "1"
        server.let_start()
        # The connection is the same; from here on keys are asked for.
        assert http.get("/health").json() == {"status": "ok"}
        assert http.get("/v1/models").status_code == 401
        with server.client(api_key="secret") as client:
            assert client.completions.create(model=server.model, **SHORT).choices[0].text
        assert "Traceback" not in server.log


# --- the server's end


@pytest.mark.parametrize("to_all", [False, True], ids=["SIGTERM", "SIGINT to all processes"])
def test_what_runs_is_finished(tiny: Path, to_all: bool) -> None:
    with Server(tiny, "--kv-memory", "100MB", "--drain-s", PATIENCE_S) as server, server.client() as client:
        engines = server.engines()
        stream = httpx.Client(timeout=PATIENCE_S)
        body = {"prompt": "a", "model": server.model, "max_tokens": LONG_TOKENS, "ignore_eos": True, "stream": True}
        options = {"stream_options": {"include_usage": True}}
        with stream, stream.stream("POST", f"{server.api}/completions", json={**body, **options}) as response:
            lines = response.iter_lines()
            next(lines)
            for pid in engines:  # the answer does not end before all of this has been looked at
                os.kill(pid, signal.SIGSTOP)
            if to_all:
                for pid in (server.process.pid, *engines):
                    os.kill(pid, signal.SIGINT)
            else:
                server.signal(signal.SIGTERM)
            until(lambda: server.status("/ready") == 503, "the end of the intake")
            assert server.status("/health") == 200
            with pytest.raises(openai.InternalServerError) as refused:
                client.completions.create(model=server.model, **SHORT)
            assert (refused.value.status_code, refused.value.code) == (503, "shutting_down")
            for pid in engines:
                os.kill(pid, signal.SIGCONT)
            *_, usage, end = [line for line in lines if line]
        assert end == "data: [DONE]"
        assert json.loads(usage.removeprefix("data: "))["usage"]["completion_tokens"] == LONG_TOKENS
        assert server.wait() == 0
        assert not any(map(alive, engines))
        assert "Traceback" not in server.log


def test_what_does_not_finish_in_time_is_ended(tiny: Path, threads: ThreadPoolExecutor) -> None:
    with Server(tiny, "--kv-memory", "100MB", "--drain-s", 0.2) as server, server.client() as client:
        engines = server.engines()
        waiter = whole(threads, client, model=server.model, **ENDLESS)
        until(lambda: server.metric("num_requests_running") == 1, "the start of the request")
        stream = Stream(client, model=server.model, **ENDLESS)
        server.signal()
        with pytest.raises(openai.APIError, match="shutting down") as caught:
            stream.rest()
        assert caught.value.code == "shutting_down"
        with pytest.raises(openai.InternalServerError) as refused:
            waiter.result(PATIENCE_S)
        assert refused.value.status_code == 503
        assert server.wait() == 0
        assert not any(map(alive, engines))
        assert "Traceback" not in server.log


def test_a_second_signal_ends_at_once(tiny: Path, threads: ThreadPoolExecutor) -> None:
    with Server(tiny, "--kv-memory", "100MB", "--drain-s", 600) as server, server.client() as client:
        engines = server.engines()
        stream = Stream(client, model=server.model, **ENDLESS)
        rest = threads.submit(stream.rest)
        server.signal()
        until(lambda: server.status("/ready") == 503, "the end of the intake")
        server.signal()
        assert server.wait() == 1
        until(lambda: not any(map(alive, engines)), "the end of the engine")
        with pytest.raises(openai.APIError, match="shutting down"):  # for that, there is time
            rest.result(PATIENCE_S)
        assert "Traceback" not in server.log


# --- starts that fail


def refused(*arguments: object) -> str:
    """What a start that fails says, in one line, without its time."""
    done = subprocess.run(command(*arguments), env=environment(), capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1
    *_, last = done.stderr.splitlines()
    assert "Traceback" not in done.stderr
    assert last.startswith("error: ")
    return last


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_it_is_ready(tiny: Path, tmp_path: Path, number: int) -> None:
    """It does not wait for the weights, and leaves nothing behind. Ctrl-C reaches the whole group, and so does this."""
    process = subprocess.Popen(
        command(tiny, "--port", 0),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment(TMPDIR=str(tmp_path)),
    )
    with process:
        assert process.stderr is not None
        while "loading weights" not in process.stderr.readline():
            assert process.poll() is None
        os.killpg(process.pid, number)
        assert process.stderr.read().endswith("stopped before the server was ready\n")
        assert process.wait(PATIENCE_S) == 0
    assert not list(tmp_path.glob("penstock-*"))


def test_a_port_in_use(tiny: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = f"error: cannot listen on 127.0.0.1:{port}: Address already in use; choose another with --port"
        assert refused(tiny, "--port", port).startswith(f"{said} or PENSTOCK_PORT")
        assert "no model 'nosuch'" in refused("nosuch", "--port", port)


def test_a_host_that_is_not_here(tiny: Path) -> None:
    assert "cannot listen on no.such.host.invalid:0" in refused(
        tiny, "--port", 0, "--host", "no.such.host.invalid", "--unprotected"
    )


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    assert "nowhere" in refused(tmp_path / "nowhere", "--port", 0)


def test_a_model_that_is_broken(tmp_path: Path) -> None:
    """Only the engine finds out."""
    broken = tiny_models.make("llama", tmp_path / "broken")
    weights = next(broken.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "truncated" in refused(broken, "--port", 0)
