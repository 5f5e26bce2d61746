from __future__ import annotations

import json

import anthropic
import httpx2
import pytest
from anthropic.types import ThreadUnsupportedRequestError

from penstock import errors
from penstock.errors import PenstockError
from penstock.http.api.anthropic.error_body import PATH_PREFIX, VERSION_HEADER, render_error
from penstock.http.error_formats import ERROR_FORMATS
from penstock.http.error_response import ErrorFormats


@pytest.mark.parametrize(
    ("error", "raised", "kind"),
    [
        (
            errors.InvalidRequest("max_tokens is required", param="max_tokens"),
            "BadRequestError",
            "invalid_request_error",
        ),
        (errors.Unauthorized("no key"), "AuthenticationError", "authentication_error"),
        (errors.ModelNotFound("no such model", param="model"), "NotFoundError", "not_found_error"),
        (errors.MethodNotAllowed("not so"), "APIStatusError", "invalid_request_error"),
        (errors.RequestTooLarge("too large"), "RequestTooLargeError", "request_too_large"),
        (errors.MediaTypeUnsupported("not JSON"), "APIStatusError", "invalid_request_error"),
        (errors.QueueFull("full"), "RateLimitError", "rate_limit_error"),
        (errors.EngineDied("gone"), "ServiceUnavailableError", "overloaded_error"),
        (errors.ShuttingDown("closing"), "ServiceUnavailableError", "overloaded_error"),
        (ZeroDivisionError("secret"), "InternalServerError", "api_error"),
    ],
)
def test_the_sdk_understands_them(error: Exception, raised: str, kind: str) -> None:
    told = render_error(error, "req-1")
    transport = httpx2.MockTransport(lambda _: httpx2.Response(told.status, content=told.body, headers=told.headers))
    client = anthropic.Anthropic(api_key="k", http_client=httpx2.Client(transport=transport), max_retries=0)

    with client, pytest.raises(getattr(anthropic, raised, anthropic.APIStatusError)) as caught:
        client.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "a"}])

    assert caught.value.status_code == told.status
    assert json.loads(told.body) == {
        "type": "error",
        "error": {"type": kind, "message": told.message},
        "request_id": "req-1",
    }
    assert "secret" not in told.message
    if isinstance(error, PenstockError):
        assert told.message == error.message


def test_the_field_at_fault_is_named() -> None:
    for message, wanted in (("it is deep", "tools[0]: it is deep"), ("tools[0] is deep", "tools[0] is deep")):
        assert render_error(errors.InvalidRequest(message, param="tools[0]"), "r").message == wanted


def test_the_sdk_learns_that_there_are_no_threads() -> None:
    """Its tool runner goes on without: it looks for this code."""
    told = render_error(errors.InvalidRequest("thread is not supported: leave it out", param="thread"), "r")
    transport = httpx2.MockTransport(lambda _: httpx2.Response(told.status, content=told.body))
    client = anthropic.Anthropic(api_key="k", http_client=httpx2.Client(transport=transport), max_retries=0)

    with client, pytest.raises(ThreadUnsupportedRequestError) as caught:
        client.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "a"}])

    assert json.loads(told.body)["error"]["details"] == {
        "error_code": "thread_unsupported_request",
        "unsupported": ["thread"],
    }
    assert caught.value.details.error_code == "thread_unsupported_request"


def test_a_client_is_told_when_to_come_back() -> None:
    assert int(render_error(errors.QueueFull("full"), "req-1").headers["Retry-After"]) >= 1


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/v1/messages", True),
        ("/v1/messages/count_tokens", True),
        ("/v1/messages/batches", True),
        ("/v1/messagesque", False),
        ("/v1/chat/completions", False),
        ("/", False),
    ],
)
def test_which_paths_have_this_format(path: str, wanted: bool) -> None:
    formats = ErrorFormats({PATH_PREFIX: render_error})
    assert (formats.for_request({"path": path, "headers": []}) is render_error) is wanted


@pytest.mark.parametrize(("path", "wanted"), [("/v1/models", True), ("/nowhere", True), ("/api/chat", False)])
def test_which_format_its_clients_get_on_other_paths(path: str, wanted: bool) -> None:
    scope = {"path": path, "headers": [(VERSION_HEADER.encode(), b"2023-06-01")]}
    assert (ERROR_FORMATS.for_request(scope) is render_error) is wanted
    assert ERROR_FORMATS.for_request({**scope, "headers": []}) is not render_error
