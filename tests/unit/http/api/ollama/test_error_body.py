from __future__ import annotations

import json

import httpx
import ollama
import pytest

from penstock import errors
from penstock.http.api.ollama.error_body import PATH_PREFIX, render_error
from penstock.http.error_response import ErrorFormats


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidRequest("options.top_k must be an integer", param="options.top_k"), 400),
        (errors.Unauthorized("no key"), 401),
        (errors.ModelNotFound('model "x" not found', param="model"), 404),
        (errors.QueueFull("full"), 429),
        (errors.EngineDied("gone"), 503),
        (ZeroDivisionError("secret"), 500),
    ],
)
def test_the_sdk_understands_them(error: Exception, status: int) -> None:
    told = render_error(error, "req-1")
    transport = httpx.MockTransport(lambda _: httpx.Response(told.status, content=told.body, headers=told.headers))

    with ollama.Client(transport=transport) as client, pytest.raises(ollama.ResponseError) as caught:
        client.chat("m")

    assert (caught.value.status_code, caught.value.error) == (status, told.message)
    assert json.loads(told.body) == {"error": told.message}
    assert "secret" not in told.message


def test_the_field_at_fault_is_named() -> None:
    for message, wanted in (("it is deep", "format: it is deep"), ("format is deep", "format is deep")):
        assert render_error(errors.InvalidRequest(message, param="format"), "r").message == wanted


def test_a_client_is_told_when_to_come_back() -> None:
    assert int(render_error(errors.QueueFull("full"), "req-1").headers["Retry-After"]) >= 1


@pytest.mark.parametrize(
    ("path", "wanted"),
    [("/api/chat", True), ("/api/nothing", True), ("/api", False), ("/apis", False), ("/v1/messages", False)],
)
def test_which_paths_have_this_format(path: str, wanted: bool) -> None:
    formats = ErrorFormats({PATH_PREFIX: render_error})
    assert (formats.for_request({"path": path, "headers": []}) is render_error) is wanted
