"""Moderation as the openai SDK asks for it; without an engine."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.errors import PenstockError
from penstock.gateway.keys.identity import ANONYMOUS
from penstock.gateway.safety.rules import Rules
from penstock.gateway.safety.safety import Safety
from penstock.http.api.openai import moderations
from penstock.http.error_response import error_response
from penstock.http.routing import App
from penstock.settings import SafetyEntry

RULES = Rules([SafetyEntry(name="keys", patterns=("sk-[a-z]{4}",)), SafetyEntry(name="words", terms=("orion",))])


class AsAnyone:
    """Takes the place of the guards."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"] = {"identity": ANONYMOUS, "request_id": "r"}
        await self.app(scope, receive, send)


def client_of(safety: Safety | None) -> Any:
    app = App()
    service: Any = SimpleNamespace(gateway=SimpleNamespace(safety=safety), emit=None)
    moderations.add(app, service)

    async def on_error(request: Request, error: Exception) -> Response:
        return error_response(error, request.scope)

    app.add_exception_handler(PenstockError, on_error)
    http = TestClient(AsAnyone(app))
    return openai.OpenAI(base_url="http://x/v1", api_key="k", http_client=http, max_retries=0)


@pytest.fixture
def client() -> Iterator[openai.OpenAI]:
    with client_of(Safety(RULES)) as client:
        yield client


def test_texts_are_judged_by_the_rules(client: openai.OpenAI) -> None:
    answer = client.moderations.create(input=["my sk-abcd", "of ORION.", "fine"])
    assert answer.id.startswith("modr-")
    assert [one.flagged for one in answer.results] == [True, True, False]
    assert [one.categories.model_dump(exclude_none=True, exclude_unset=True) for one in answer.results] == [
        {"keys": True, "words": False},
        {"keys": False, "words": True},
        {"keys": False, "words": False},
    ]
    assert answer.results[0].category_scores.model_dump(exclude_unset=True) == {"keys": 1.0, "words": 0.0}


def test_one_text_and_parts_have_one_result(client: openai.OpenAI) -> None:
    assert client.moderations.create(input="orion").results[0].flagged
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "orion"}]
    assert [one.flagged for one in client.moderations.create(input=parts).results] == [True]  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [[], 5, [{"type": "image_url", "image_url": {"url": "http://x"}}], ["a", 5]])
def test_what_is_no_text_is_rejected(client: openai.OpenAI, given: Any) -> None:
    with pytest.raises(openai.BadRequestError):
        client.moderations.create(input=given)


def test_a_server_without_rules_says_so() -> None:
    with client_of(None) as client, pytest.raises(openai.NotFoundError, match="no safety rules"):
        client.moderations.create(input="x")
