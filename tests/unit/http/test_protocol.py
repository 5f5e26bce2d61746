"""How long a client may take to send its request, and what may follow its body; how large its headers may be is in
tests/end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from penstock.http import protocol

PATIENCE_S = 60.0
POST = b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n"
GET = b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with what was sent, or slowly."""
    if scope["path"] == "/early":
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})
        return
    if scope["path"] == "/direct":
        await stream_directly(scope, receive, send)
        return
    if scope["path"] == "/endless":
        await stream_until_gone(scope, receive, send)
        return
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message["body"], message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
    if scope["path"] == "/slow":
        await send({"type": "http.response.body", "body": b"first ", "more_body": True})
        await asyncio.sleep(5 * protocol.SILENCE_S)
    await send({"type": "http.response.body", "body": body + b"all"})


async def stream_directly(scope: Scope, receive: Receive, send: Send) -> None:
    """Past `send`, as long as the client keeps up; then a word about that, which waits."""
    body: protocol.DirectBody = scope["extensions"][protocol.BODY_EXTENSION]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
    body.write(b"one ")
    body.write(b"two ")
    count = 0
    while body.ready and count < 1000:
        body.write(b"x" * 100_000)
        count += 1
    told = b"kept up" if body.ready else b"fell behind"
    await send({"type": "http.response.body", "body": told, "more_body": False})
    while (await receive())["type"] != "http.disconnect":
        pass


async def stream_until_gone(scope: Scope, receive: Receive, send: Send) -> None:
    body: protocol.DirectBody = scope["extensions"][protocol.BODY_EXTENSION]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    body.write(b"begun ")
    while (await receive())["type"] != "http.disconnect":
        pass
    assert not body.ready


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, bytes]]


def talk(with_server: Talk) -> bytes:
    async def main() -> bytes:
        config = uvicorn.Config(app, http=protocol.Protocol, ws="none", lifespan="off", log_config=None)
        config.load()
        state = ServerState()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: protocol.Protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
        )
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            try:
                return await asyncio.wait_for(with_server(reader, writer), PATIENCE_S)
            finally:
                writer.close()
                await asyncio.gather(*state.tasks)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"", b""),
        (POST[:20], b"HTTP/1.1 408"),
        (POST, b"HTTP/1.1 408"),
        (POST + b"ab", b"HTTP/1.1 408"),
        (POST.replace(b"/echo", b"/early"), b"HTTP/1.1 401"),
    ],
    ids=["nothing", "half of the headers", "no body", "half of the body", "no body, but it was answered"],
)
def test_a_request_that_does_not_come_whole_is_ended(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, expected: bytes
) -> None:
    monkeypatch.setattr(protocol, "SILENCE_S", 0.1)

    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(sent)
        return await reader.read()  # to the end of the connection

    answer = talk(half)
    assert answer.startswith(expected)
    assert answer.count(b"HTTP/1.1") == (1 if expected else 0)


@pytest.mark.parametrize("behind", [b"", GET[:10], POST], ids=["alone", "half a head behind it", "a request behind it"])
def test_an_answer_under_way_is_not_cut_off(monkeypatch: pytest.MonkeyPatch, behind: bytes) -> None:
    monkeypatch.setattr(protocol, "SILENCE_S", 0.1)

    async def whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(GET + behind)
        return await reader.read()

    answer = talk(whole)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"first " in answer
    assert b"all" in answer


CHUNKED = b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n4\r\nbody\r\n"
LINE = b"x: " + b"a" * 1000 + b"\r\n"


@pytest.mark.parametrize(
    ("path", "endless", "expected"),
    [
        (b"/echo", b"0\r\n" + LINE * 2000, b"HTTP/1.1 431"),
        (b"/echo", b"0\r\nx: " + b"a" * 2_000_000, b"HTTP/1.1 431"),
        (b"/echo", b"4;" + b"a" * 2_000_000, b"HTTP/1.1 431"),
        (b"/early", b"0\r\n" + LINE * 2000, b"HTTP/1.1 401"),
    ],
    ids=["many trailers", "a long one", "an extension of a piece", "it was answered"],
)
def test_what_follows_a_body_without_end(
    path: bytes, endless: bytes, expected: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def all_of_it(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(CHUNKED.replace(b"/echo", path))
        answer = await reader.read(1 << 10) if path == b"/early" else b""
        writer.write(endless)
        with contextlib.suppress(ConnectionError):  # it does not read to the end
            answer += await reader.read()
        return answer

    answer = talk(all_of_it)
    assert expected.startswith(answer[: len(expected)])  # or nothing: what is not read may take the answer along
    assert answer.count(b"HTTP/1.1") <= 1
    assert "was refused" in caplog.text


def test_short_trailers_are_ignored() -> None:
    async def whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(CHUNKED + b"0\r\n" + LINE + b"\r\n")
        return await reader.read()

    answer = talk(whole)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"bodyall" in answer


def test_a_body_may_be_longer_than_headers() -> None:
    async def whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(POST.replace(b": 4", b": 1000000") + b"x" * 1_000_000)
        return await reader.read()

    assert talk(whole).endswith(b"all\r\n0\r\n\r\n")


def test_pieces_of_a_body_go_past_send_until_the_client_falls_behind() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(GET.replace(b"/slow", b"/direct"))
        begin = await reader.readuntil(b"two \r\n")
        assert b"4\r\none \r\n4\r\ntwo \r\n" in begin
        return await reader.read()

    answer = talk(slow)
    assert answer.endswith(b"b\r\nfell behind\r\n0\r\n\r\n")
    assert len(answer) < 50_000_000


def test_a_client_that_hangs_up_is_noticed_though_another_request_waits_behind() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        get = GET.replace(b"/slow", b"/endless")
        writer.write(get + get)
        return await reader.readuntil(b"begun ")  # and is gone; `talk` waits for the answer's end

    assert talk(hang_up).endswith(b"begun ")


@pytest.mark.parametrize(("least", "status"), [(1e9, b"HTTP/1.1 408"), (1e-3, b"HTTP/1.1 200")])
def test_a_body_that_trickles_is_ended(monkeypatch: pytest.MonkeyPatch, least: float, status: bytes) -> None:
    """However short its silences are: the grace and what has come of it decide."""
    monkeypatch.setattr(protocol, "GRACE_S", 0.05)
    monkeypatch.setattr(protocol, "LEAST_BYTES_PER_S", least)

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(POST.replace(b"content-length: 4", b"content-length: 12"))
        reading = asyncio.ensure_future(reader.read())
        for _ in range(12):
            writer.write(b"a")
            await asyncio.wait({reading}, timeout=0.01)
            if reading.done():
                break
        with contextlib.suppress(ConnectionError):  # it does not read to the end, which may take the answer along
            return await reading
        return b""

    answer = talk(trickle)
    assert answer.startswith(status) or (not answer and status.endswith(b"408"))


UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEA\r\n\r\n"
WEBSOCKET = b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\r\n"


def with_header(request: bytes, header: bytes) -> bytes:
    return request.replace(b"\r\n\r\n", b"\r\n" + header, 1)


@pytest.mark.parametrize("cut", [1, 40, 120, 10_000], ids=["bytewise", "in pieces", "in the head", "at once"])
@pytest.mark.parametrize("body", [POST + b"body", CHUNKED + b"0\r\n\r\n"], ids=["with a length", "chunked"])
def test_a_request_that_asks_for_an_upgrade_keeps_its_body(
    body: bytes, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Java's HTTP client asks for HTTP/2 in this way."""

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        request = with_header(body, UPGRADE)
        for start in range(0, len(request), cut):
            writer.write(request[start : start + cut])
            await asyncio.sleep(0)
        return await reader.read()

    answer = talk(ask)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"bodyall" in answer
    assert caplog.text == ""


def test_a_websocket_is_refused_by_an_ordinary_answer(caplog: pytest.LogCaptureFixture) -> None:
    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(with_header(GET.replace(b"/slow", b"/echo"), WEBSOCKET))
        return await reader.read()

    answer = talk(ask)
    assert answer.startswith(b"HTTP/1.1 200")
    assert caplog.text == ""


def test_requests_behind_an_upgrade_are_read(caplog: pytest.LogCaptureFixture) -> None:
    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        early = GET.replace(b"/slow", b"/early")
        writer.write(with_header(early, WEBSOCKET) * 400 + with_header(POST, UPGRADE) + b"body")
        return await reader.read()

    answer = talk(ask)
    assert answer.count(b"HTTP/1.1 401") == 400
    assert b"bodyall" in answer
    assert caplog.text == ""


def test_it_is_no_proxy(caplog: pytest.LogCaptureFixture) -> None:
    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"CONNECT example.com:443 HTTP/1.1\r\nhost: example.com:443\r\n\r\n")
        return await reader.read()

    assert talk(ask).startswith(b"HTTP/1.1 400")
    assert caplog.text == ""
