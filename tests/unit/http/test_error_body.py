from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import openai
import pytest

from penstock import errors
from penstock.errors import PenstockError
from penstock.http.error_body import RenderedError, render_error


def tree(root: type[PenstockError] = PenstockError) -> Iterator[type[PenstockError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


def detail(problem: RenderedError) -> dict[str, str | None]:
    body: dict[str, dict[str, str | None]] = json.loads(problem.body)
    assert list(body) == ["error"]
    return body["error"]


@pytest.mark.parametrize("kind", [kind for kind in tree() if kind.status != 500])
def test_every_error_of_ours_says_what_is_wrong(kind: type[PenstockError]) -> None:
    told = render_error(kind("this is wrong", param="the field"), "req-1")
    by_status = "requests" if told.status == 429 else "server_error" if told.status > 500 else "invalid_request_error"

    assert told.status == kind.status
    assert detail(told) == {
        "message": "this is wrong",
        "type": "insufficient_quota" if kind is errors.BudgetExhausted else by_status,
        "param": "the field",
        "code": kind.code,
    }


@pytest.mark.parametrize(
    "error", [PenstockError("a tensor of shape [3] fell"), KeyError("secret"), RuntimeError("secret")]
)
def test_our_own_mistakes_are_not_told(error: Exception) -> None:
    told = render_error(error, "req-1")

    assert told.status == 500
    assert detail(told) == {
        "message": "internal error; the server's log says more about request req-1",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }


@pytest.mark.parametrize("error", [errors.QueueFull("full"), errors.EngineDied("gone")])
def test_a_client_is_told_when_to_come_back(error: PenstockError) -> None:
    assert int(render_error(error, "req-1").headers["Retry-After"]) >= 1


def test_a_rate_limit_says_which_kind_and_sends_its_headers() -> None:
    error = errors.RateLimited("too many", owner="tenant", limit="tokens_per_minute")
    error.retry_after_s = 6.2
    error.headers = {"x-ratelimit-remaining-tokens": "3"}
    rendered = render_error(error, "req-1")

    assert detail(rendered)["type"] == "tokens"
    assert rendered.headers == {"Retry-After": "7", "x-ratelimit-remaining-tokens": "3"}


def test_a_client_without_a_key_is_told_how_to_give_one() -> None:
    assert render_error(errors.Unauthorized("no key"), "req-1").headers == {"WWW-Authenticate": "Bearer"}


@pytest.mark.parametrize(
    ("error", "raised", "code"),
    [
        (errors.ContextOverflow("too long", param="messages"), openai.BadRequestError, "context_length_exceeded"),
        (errors.Unauthorized("no key"), openai.AuthenticationError, "invalid_api_key"),
        (errors.ModelNotFound("no such model", param="model"), openai.NotFoundError, "model_not_found"),
        (errors.QueueFull("full"), openai.RateLimitError, "queue_full"),
        (errors.BudgetExhausted("spent"), openai.RateLimitError, "insufficient_quota"),
        (errors.EngineDied("gone"), openai.InternalServerError, "engine_died"),
        (ZeroDivisionError(), openai.InternalServerError, "internal_error"),
    ],
)
def test_the_sdk_understands_them(error: Exception, raised: type[openai.APIStatusError], code: str) -> None:
    told = render_error(error, "req-1")
    transport = httpx.MockTransport(lambda _: httpx.Response(told.status, content=told.body, headers=told.headers))
    http = httpx.Client(transport=transport)

    client = openai.OpenAI(api_key="k", base_url="http://test/v1", http_client=http, max_retries=0)

    with client, pytest.raises(raised) as caught:
        client.models.list()

    assert caught.value.code == code
    assert caught.value.param == getattr(error, "param", None)
