"""A page that the server did not send, in a browser that asks it for permission."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Error

from helpers.server_process import PATIENCE_S, Server

STREAM = """
async ([url, model]) => {
    const headers = {"content-type": "application/json", "authorization": "Bearer secret", "x-stainless-lang": "js"}
    const body = JSON.stringify({model, prompt: "a", max_tokens: 3, stream: true})
    const answer = await fetch(url + "/v1/completions", {method: "POST", headers, body})
    const wrong = await fetch(url + "/v1/models")
    return [answer.headers.get("x-request-id"), await answer.text(), wrong.status, await wrong.text()]
}
"""


class Application(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><p>An application")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Where the application is: its pages are of the origin by whose name they are asked for."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Application) as application:
        threading.Thread(target=application.serve_forever, daemon=True).start()
        yield application.server_port
        application.shutdown()


@pytest.fixture(scope="module")
def open_server(chromium: str, tiny: Path, port: int) -> Iterator[Server]:
    options = ("--allow-origin", f"http://localhost:{port}", "--kv-memory", "100MB")
    with Server(tiny, *options, api_key="secret") as server:
        yield server


def called(browser: Browser, server: Server, origin: str) -> Any:
    with browser.new_context() as context:
        context.set_default_timeout(PATIENCE_S * 1000)
        page = context.new_page()
        page.goto(origin)
        return page.evaluate(STREAM, [server.url, server.model])


def test_a_page_that_may_reads_streams_headers_and_errors(browser: Browser, open_server: Server, port: int) -> None:
    name, text, status, error = called(browser, open_server, f"http://localhost:{port}")

    assert name.startswith("req-")
    assert text.endswith("data: [DONE]\n\n")
    assert (status, "invalid_api_key" in error) == (401, True)


def test_a_page_that_may_not_gets_nothing(browser: Browser, open_server: Server, port: int) -> None:
    with pytest.raises(Error, match="Failed to fetch"):
        called(browser, open_server, f"http://127.0.0.1:{port}")
    assert "OPTIONS /v1/completions 400" in open_server.log
