"""What commands say of servers that are not there, or not what they should be."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from penstock.cli.remote import Remote, ServerSilent
from penstock.errors import InvalidSetting, NotFound, Unauthorized

ANSWERS = {
    "/json": (200, b'{"a": 1}'),
    "/text": (200, b"hello"),
    "/broken": (200, b'{"a"'),
    "/locked": (401, b"{}"),
    "/gone": (404, b'{"error": {"code": "not_found", "message": "no events here", "param": null}}'),
    "/teapot": (418, b"<html>"),
    "/events": (200, b'event: hello\ndata: {"now": 1}\n\n: a comment\n\nevent: tick\ndata: {"t": 2}\n\n'),
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = ANSWERS[self.path]
        if self.headers.get("authorization") == "Bearer secret":
            status, body = 200, b'"in"'
        self._answer(status, body)

    def do_POST(self) -> None:
        assert self.headers["content-type"] == "application/json"
        self._answer(200, self.rfile.read(int(self.headers["content-length"])))

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_answers(url: str) -> None:
    remote = Remote(f"{url}/v1/")  # as the server prints it
    assert remote.get("/json") == {"a": 1}
    assert remote.text("/text") == "hello"
    assert remote.post("/json", {"b": 2}) == {"b": 2}
    assert list(remote.events("/events")) == [("hello", {"now": 1}), ("tick", {"t": 2})]


def test_a_key_goes_with_it(url: str) -> None:
    assert Remote(url, "secret").get("/locked") == "in"
    with pytest.raises(Unauthorized, match="--api-key"):
        Remote(url).get("/locked")


def test_what_the_server_says_is_passed_on(url: str) -> None:
    with pytest.raises(NotFound, match="no events here"):
        Remote(url).get("/gone")


@pytest.mark.parametrize("path", ["/text", "/broken", "/teapot"])
def test_something_else_answers(url: str, path: str) -> None:
    with pytest.raises(ServerSilent, match="is that a Penstock server"):
        Remote(url).get(path)


def test_nobody_is_there() -> None:
    with pytest.raises(ServerSilent, match=r"no server at http://127\.0\.0\.1:1"):
        Remote("127.0.0.1:1").get("/health")


@pytest.mark.parametrize("address", ["ftp://host", "http://", "http://host:port", "://x"])
def test_no_address(address: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        Remote(address)
    assert caught.value.param == "url"
