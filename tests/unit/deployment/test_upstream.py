"""An upstream on loopback that misbehaves in every way: each request ends, with an error that says what happened."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.scripted_upstream import Exchange, Script, ScriptedUpstream, answer, delta, usage
from penstock.deployment.protocol import ModelCard
from penstock.deployment.ticket import Ticket
from penstock.deployment.upstream_client import environment_proxy, retry_after_s
from penstock.deployment.upstream_endpoint import Endpoint
from penstock.deployment.upstream_model import UpstreamModel
from penstock.errors import (
    InvalidRequest,
    ModelNotFound,
    PenstockError,
    UpstreamBusy,
    UpstreamFailed,
    UpstreamTimeout,
)
from penstock.flow import Completion, FinishReason, Request, SamplingParams
from penstock.flow.identity import SequenceNumbers
from penstock.observe import events

HELLO = usage(20, 3)


def request(text: str = "Say hello.", **fields: Any) -> Request:
    params = fields.pop("params", SamplingParams())
    return Request(id="r", params=params, messages=[{"role": "user", "content": text}], **fields)


def model_at(url: str, **fields: Any) -> UpstreamModel:
    emit = fields.pop("emit", None)
    endpoint = Endpoint(name="big", url=url, model="there", **fields)
    card = ModelCard(name="big", capabilities=endpoint.capabilities, remote=True)
    return UpstreamModel(endpoint, card, SequenceNumbers(), emit=emit)


async def exchange(model: UpstreamModel, *requests: Request) -> Ticket:
    ticket = await model.submit(await model.prepare(list(requests)))
    await ticket.finished()
    return ticket


def run(script: Script, *requests: Request, tls: ssl.SSLContext | None = None, **fields: Any) -> Ticket:
    """One exchange with an upstream that follows the script."""

    async def main() -> Ticket:
        async with ScriptedUpstream(script).running(tls) as upstream:
            model = model_at(upstream.url, **fields)
            try:
                return await exchange(model, *(requests or (request(),)))
            finally:
                assert not model.upstream.load().open, "every request has ended"
                await model.upstream.close()

    return asyncio.run(main())


def completion(ticket: Ticket) -> Completion:
    assert ticket.error is None, ticket.error
    assert ticket.done
    return ticket.active_requests[0].completion()


def failure(script: Script, **fields: Any) -> PenstockError:
    ticket = run(script, **fields)
    assert ticket.error is not None
    assert all(choice.finish is FinishReason.ERROR for choice in ticket.active_requests[0].choices)
    return ticket.error


async def hello(exchange: Exchange) -> None:
    await answer(exchange, "Hello", ", world", counts=HELLO)


def test_an_answer_comes_with_its_own_usage() -> None:
    seen: list[events.Event] = []
    done = completion(run(hello, emit=seen.append))
    assert (done.text, done.finish) == ("Hello, world", FinishReason.END)
    assert (len(done.prompt_tokens), len(done.tokens)) == (20, 3)
    assert done.choices[0].timings is not None
    assert [type(event) for event in seen][:2] == [events.Queued, events.Delivered]
    finishes = [delta.finish for event in seen if isinstance(event, events.Delivered) for delta in event.deltas]
    assert finishes.count(FinishReason.END) == 1


def test_the_key_goes_in_a_header_and_nowhere_else() -> None:
    async def script(exchange: Exchange) -> None:
        assert exchange.headers["authorization"] == "Bearer secret"
        assert exchange.path == "/v1/chat/completions"
        await hello(exchange)

    completion(run(script, key="secret"))
    assert "secret" not in repr(Endpoint(name="a", url="http://x", model="m", key="secret"))


def test_the_body_is_openai_s_and_streams() -> None:
    bodies: list[Any] = []

    async def script(exchange: Exchange) -> None:
        bodies.append(exchange.body)
        await hello(exchange)

    run(script, request(params=SamplingParams(max_tokens=9, temperature=0.5, stop=("\n",))))
    assert bodies == [
        {
            "model": "there",
            "messages": [{"role": "user", "content": "Say hello."}],
            "max_tokens": 9,
            "temperature": 0.5,
            "stop": ["\n"],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


def test_reasoning_and_tool_calls_are_streamed_apart() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.start_events()
        await exchange.event(delta(reasoning_content="Hm. "))
        await exchange.event(delta(reasoning_content="Yes."))
        call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}
        await exchange.event(delta(tool_calls=[call]))
        for piece in ('{"a"', ": 1}"):
            await exchange.event(delta(tool_calls=[{"index": 0, "function": {"arguments": piece}}]))
        await exchange.event(delta(finish="tool_calls"))
        await exchange.end_events()

    choice = completion(run(script)).choices[0]
    assert choice.reasoning == "Hm. Yes."
    assert [(call.id, call.name, call.arguments) for call in choice.calls] == [("c1", "look", '{"a": 1}')]


def test_log_probabilities_have_the_texts_of_the_upstream() -> None:
    top = [{"token": "Hi", "logprob": -0.1, "bytes": [72, 105]}, {"token": "Ho", "logprob": -3.0}]
    scored = {"content": [{"token": "Hi", "logprob": -0.1, "bytes": [72, 105], "top_logprobs": top}]}

    async def script(exchange: Exchange) -> None:
        assert exchange.body["top_logprobs"] == 2
        await exchange.start_events()
        event = delta(content="Hi")
        event["choices"][0]["logprobs"] = scored
        await exchange.event(event)
        await exchange.event(delta(finish="stop"))
        await exchange.end_events()

    async def main() -> None:
        async with ScriptedUpstream(script).running() as upstream:
            model = model_at(upstream.url, capabilities=frozenset(("chat", "logprobs")))
            ticket = await exchange(model, request(params=SamplingParams(logprobs=2)))
            entries = completion(ticket).choices[0].logprobs
            assert entries is not None
            assert len(entries) == 2, "the last is of the token that ended it"
            shown = [(model.vocabulary.token_bytes(token), value) for token, value in entries[0].top]
            assert shown == [(b"Hi", -0.1), (b"Ho", -3.0)]
            assert entries[0].rank == 1
            await model.upstream.close()

    asyncio.run(main())


def test_an_upstream_that_does_not_stream_is_served_as_well() -> None:
    message = {"role": "assistant", "content": "Hello"}
    whole = {"model": "there", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

    async def script(exchange: Exchange) -> None:
        await exchange.respond(200, json.dumps({**whole, "usage": HELLO["usage"]}).encode())

    done = completion(run(script))
    assert (done.text, len(done.prompt_tokens)) == ("Hello", 20)


def test_embeddings_are_of_unit_length() -> None:
    async def script(exchange: Exchange) -> None:
        assert (exchange.path, exchange.body["input"]) == ("/v1/embeddings", "text")
        body = {"data": [{"embedding": [3.0, 4.0]}], "usage": {"prompt_tokens": 5}}
        await exchange.respond(200, json.dumps(body).encode())

    embed = Request(id="r", params=SamplingParams(), text="text", task="embed")
    ticket = run(script, embed, capabilities=frozenset(("embedding",)))
    assert ticket.error is None
    active = ticket.active_requests[0]
    assert len(active.submits[0].tokens) == 5
    assert memoryview(active.embedding()).cast("f").tolist() == pytest.approx([0.6, 0.8])


# --- misbehaviour


def test_slow_to_begin() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.gone.wait()

    error = failure(script, first_token_s=0.05)
    assert isinstance(error, UpstreamTimeout)
    assert error.message == "upstream 'big': no output for 0.05 s"


def test_slow_in_the_middle() -> None:
    """Comments keep the connection busy, but are no output."""

    async def script(exchange: Exchange) -> None:
        await exchange.start_events()
        await exchange.event(delta(content="Hel"))
        while True:
            await exchange.raw(b": keep-alive\n\n")
            await asyncio.sleep(0.01)

    error = failure(script, idle_s=0.1)
    assert isinstance(error, UpstreamTimeout)


def test_the_request_s_own_timeout_ends_it_with_what_there_is() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.start_events()
        await exchange.event(delta(content="Hel"))
        await exchange.gone.wait()

    for timeout_s in (0.1, 1.0, 10.0):  # longer where a busy machine brings no text within a tenth of a second
        ticket = run(script, request(params=SamplingParams(timeout_s=timeout_s)))
        done = ticket.active_requests[0].completion()
        assert (ticket.error, done.finish) == (None, FinishReason.TIMEOUT)
        if done.text:
            break
    assert done.text == "Hel"


def test_overloaded_with_retry_after() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.respond(429, b'{"error": {"message": "slow down"}}', "retry-after: 7\r\n")

    error = failure(script)
    assert isinstance(error, UpstreamBusy)
    assert (error.status, error.retry_after_s) == (429, 7.0)
    assert error.message == "upstream 'big': it is overloaded (429): slow down"


@pytest.mark.parametrize("status", [500, 502, 503])
def test_a_failure_of_the_upstream_shows_nothing_of_its_insides(status: int) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.respond(status, b'{"error": {"message": "secret host 10.0.0.1"}}')

    error = failure(script)
    assert isinstance(error, UpstreamFailed)
    assert error.message == f"upstream 'big': it answered with status {status}"


@pytest.mark.parametrize(("status", "kind"), [(401, UpstreamFailed), (404, UpstreamFailed), (307, UpstreamFailed)])
def test_a_wrong_configuration_is_not_the_client_s_fault(status: int, kind: type[PenstockError]) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.respond(status, b"{}", "location: http://127.0.0.1:1/\r\n")

    assert isinstance(failure(script), kind)


def test_a_rejected_field_is_the_client_s_fault() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.respond(400, b'{"error": {"message": "top_p is bad", "param": "top_p"}}')

    error = failure(script)
    assert isinstance(error, InvalidRequest)
    assert (error.param, error.message) == ("top_p", "upstream 'big': it rejected the request (400): top_p is bad")


def test_half_a_stream_that_ends_politely() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.start_events()
        await exchange.event(delta(content="Hel"))
        await exchange.write(b"0\r\n\r\n")

    assert failure(script).message == "upstream 'big': its answer broke off"


def test_half_a_stream_that_is_cut() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.start_events()
        await exchange.event(delta(content="Hel"))
        exchange.hang_up()

    assert failure(script).message == "upstream 'big': its answer broke off"


def test_an_answer_is_complete_even_if_its_usage_never_comes() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.start_events()
        await exchange.event(delta(content="Hello", finish="stop"))
        exchange.hang_up()

    ticket = run(script)
    assert completion(ticket).text == "Hello"
    assert ticket.active_requests[0].usage_estimated


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"data: {not json\n\n", "invalid answer"),
        (b'data: {"choices": 5}\n\n', "invalid answer"),
        (b"data: \xff\xfe\n\n", "invalid answer"),
        (b"<html>hello</html>\n\n", "invalid event"),
        (b'data: {"choices": [{"index": 7, "delta": {"content": "x"}}]}\n\n', "choice 7 of 1"),
        (b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "bored"}]}\n\n', "unknown reason"),
        (b'data: {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "x"}}]}}]}\n\n', "without its name"),
        (b'data: {"error": {"message": "out of memory"}}\n\n', "it failed: out of memory"),
        (b"data: " + b"[" * 5000 + b"\n\n", "invalid answer"),
        (b"x" * (5 << 20), "more than"),
    ],
    ids=lambda value: value[:20] if isinstance(value, bytes) else None,
)
def test_garbage(data: bytes, message: str) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.start_events()
        await exchange.raw(data)
        await exchange.gone.wait()

    error = failure(script)
    assert isinstance(error, UpstreamFailed)
    assert message in error.message


def test_a_page_instead_of_an_answer() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.respond(200, b"<html>Sign in</html>", kind="text/html")

    assert failure(script).message == "upstream 'big': it answered with 'text/html' instead of events"


def test_a_response_that_is_no_http() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.write(b"hello there\r\n\r\n")

    assert isinstance(failure(script), UpstreamFailed)


def test_another_model_is_served_and_said() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.start_events()
        await exchange.event(delta("cheaper", content="Hello", finish="stop"))
        await exchange.end_events()

    ticket = run(script)
    assert completion(ticket).warnings == ("the upstream 'big' answered with its model 'cheaper'",)


def test_a_dated_name_is_the_same_model() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.start_events()
        await exchange.event(delta("there-2026-01-01", content="Hello", finish="stop"))
        await exchange.end_events()

    assert completion(run(script)).warnings == ()


@pytest.mark.parametrize(
    "counts",
    [
        None,
        usage(-5, 3),
        usage(10**9, 3),
        usage(20, 10**9),
        usage(20, 0),
        usage(20, 3, prompt_tokens_details={"cached_tokens": 21}),
        {"choices": [], "usage": {}},
    ],
    ids=str,
)
def test_usage_that_is_missing_or_a_lie_is_replaced_by_the_estimate(counts: dict[str, Any] | None) -> None:
    async def script(exchange: Exchange) -> None:
        await answer(exchange, "Hello", counts=counts)

    ticket = run(script)
    done = completion(ticket)
    assert ticket.active_requests[0].usage_estimated
    assert (len(done.prompt_tokens), len(done.tokens)) == (len("Say hello.") + 8 + 16, len("Hello"))


def test_cached_and_reasoning_tokens_are_taken_from_usage() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 16}, "completion_tokens_details": {"reasoning_tokens": 2}}

    async def script(exchange: Exchange) -> None:
        await answer(exchange, "Hello", counts=usage(20, 3, **details))

    ticket = run(script)
    done = completion(ticket)
    assert not ticket.active_requests[0].usage_estimated
    assert (done.cached_tokens, done.choices[0].reasoning_tokens, len(done.tokens)) == (16, 2, 3)


def test_nobody_listens() -> None:
    async def main() -> PenstockError | None:
        async with ScriptedUpstream(hello).running() as upstream:
            url = upstream.url
        model = model_at(url)
        ticket = await exchange(model, request())
        await model.upstream.close()
        return ticket.error

    error = asyncio.run(main())
    assert isinstance(error, UpstreamFailed)
    assert "cannot be reached" in error.message


def test_tls_with_a_server_that_speaks_none() -> None:
    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def main() -> PenstockError | None:
        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        model = model_at(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
        ticket = await exchange(model, request())
        await model.upstream.close()
        server.close()
        return ticket.error

    error = asyncio.run(main())
    assert isinstance(error, UpstreamFailed)
    assert "TLS failed" in error.message


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_tls_with_a_certificate_that_nobody_signed(tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command, *names], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    error = failure(hello, tls=context)
    assert "TLS failed" in error.message


# --- cancellation


def cancelled(act: Callable[[UpstreamModel, Ticket], None]) -> tuple[Ticket, Exchange]:
    async def script(exchange: Exchange) -> None:
        await exchange.start_events()
        await exchange.event(delta(content="Hel"))
        await exchange.gone.wait()

    async def main() -> tuple[Ticket, Exchange]:
        async with ScriptedUpstream(script).running() as upstream:
            model = model_at(upstream.url)
            ticket = await model.submit(await model.prepare([request()]))
            await ticket.take()
            act(model, ticket)
            await asyncio.wait_for(upstream.requests[0].gone.wait(), 60)
            while model.upstream.load().open:
                await asyncio.sleep(0)
            await model.upstream.close()
            return ticket, upstream.requests[0]

    return asyncio.run(main())


def test_a_client_that_leaves_closes_the_connection() -> None:
    ticket, _ = cancelled(lambda model, ticket: model.upstream.cancel(ticket))
    assert ticket.done
    assert ticket.active_requests[0].choices[0].finish is FinishReason.CANCELLED


def test_a_request_that_was_prepared_when_its_model_was_removed() -> None:
    async def main() -> None:
        model = model_at("http://127.0.0.1:9/v1")
        call = await model.prepare([request()])
        await model.upstream.close()
        with pytest.raises(ModelNotFound, match="the model 'big' has been removed"):
            await model.submit(call)

    asyncio.run(main())


def test_an_empty_reason_is_no_end() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.start_events()
        await exchange.event(delta(content="Hel", finish=""))
        await exchange.event(delta(content="lo", finish="stop"))
        await exchange.event(HELLO)
        await exchange.end_events()

    done = completion(run(script))
    assert (done.text, done.finish) == ("Hello", FinishReason.END)


def test_a_server_that_stops_ends_all_in_an_error() -> None:
    ticket, _ = cancelled(lambda model, _: model.end_all("the server is shutting down"))
    assert ticket.error is not None
    assert ticket.error.code == "shutting_down"


def test_a_connection_that_was_closed_while_idle_is_no_failure() -> None:
    async def main() -> None:
        async def script(exchange: Exchange) -> None:
            await hello(exchange)
            exchange.hang_up()

        async with ScriptedUpstream(script).running() as upstream:
            model = model_at(upstream.url)
            for _ in range(3):
                assert (await exchange(model, request())).error is None
            await model.upstream.close()

    asyncio.run(main())


def test_proxies_of_the_environment_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert environment_proxy("https://api.example/v1") is None
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "127.0.0.1,inner.example")
    assert environment_proxy("https://api.example/v1") == "http://proxy:3128"
    assert environment_proxy("https://inner.example/v1") is None
    assert environment_proxy("http://127.0.0.1:8000/v1") is None


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        ("3", 3.0),
        ("-1", 0.0),
        ("1e99", 3600.0),
        ("nan", None),
        ("soon", None),
        ("Thu, 01 Jan 1970 00:01:00 GMT", 50.0),
    ],
)
def test_retry_after_is_a_number_or_a_date(header: str | None, expected: float | None) -> None:
    assert retry_after_s(header, now=10.0) == expected
