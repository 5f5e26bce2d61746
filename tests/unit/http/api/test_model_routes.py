"""GET /v1/models, as the SDKs of OpenAI and Anthropic ask for it; without an engine."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import anthropic
import httpx2
import openai
import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.deployment.protocol import ModelCard, State
from penstock.deployment.registry import ModelRegistry
from penstock.gateway.keys.identity import ANONYMOUS
from penstock.http import exception_handlers
from penstock.http.api import model_routes
from penstock.http.error_formats import ERROR_FORMATS
from penstock.http.middleware.request_id import RequestIdMiddleware
from penstock.http.routing import App
from penstock.http.service import Service

LOADED = 1_700_000_000
NAMES = ("a", "b", "org/c", "b@tone", "e")


class AsAnyone:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["identity"] = ANONYMOUS
        await self.app(scope, receive, send)


@pytest.fixture
def http() -> TestClient:
    cards = [ModelCard(name=name, context=128, created=LOADED) for name in NAMES]
    registry = ModelRegistry(cast(Any, SimpleNamespace(card=card, state=State.READY)) for card in cards)
    app = App()
    model_routes.add(app, cast(Service, SimpleNamespace(models_of=lambda identity: registry)))
    exception_handlers.add(app)
    return TestClient(RequestIdMiddleware(AsAnyone(app), error_formats=ERROR_FORMATS))


@pytest.fixture
def client(http: TestClient) -> Iterator[anthropic.Anthropic]:
    def forward(request: httpx2.Request) -> httpx2.Response:
        headers = {name: value for name, value in request.headers.items() if name != "accept-encoding"}
        answer = http.request(request.method, str(request.url), headers=headers)
        return httpx2.Response(answer.status_code, content=answer.content, headers=dict(answer.headers))

    transport = httpx2.Client(transport=httpx2.MockTransport(forward))
    with anthropic.Anthropic(base_url="http://x", api_key="k", http_client=transport, max_retries=0) as client:
        yield client


def test_anthropics_client_gets_its_fields(client: anthropic.Anthropic) -> None:
    page = client.models.list()
    assert [one.id for one in page.data] == [one.display_name for one in page.data] == [*NAMES]
    assert (page.has_more, page.first_id, page.last_id) == (False, "a", "e")
    one = client.models.retrieve("org/c")
    assert (one.type, one.display_name, one.lifecycle, one.max_input_tokens) == ("model", "org/c", "active", 128)
    assert one.created_at == datetime.fromtimestamp(LOADED, UTC)
    assert client.beta.models.retrieve("a").display_name == "a"
    assert [one.id for one in client.beta.models.list()] == [*NAMES]


def test_openais_client_gets_its_own(http: TestClient) -> None:
    with openai.OpenAI(base_url="http://x/v1", api_key="k", http_client=http, max_retries=0) as client:
        page = client.models.list()
        assert (page.object, [one.id for one in page.data]) == ("list", [*NAMES])
        assert client.models.retrieve("a").to_dict().keys() >= {"object", "created", "owned_by", "max_model_len"}
        assert "display_name" not in http.get("/v1/models").text


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 20])
def test_pages_in_both_directions_have_every_model_once(client: anthropic.Anthropic, limit: int) -> None:
    assert [one.id for one in client.models.list(limit=limit)] == [*NAMES]
    before = [one.id for page in client.models.list(limit=limit, before_id="e").iter_pages() for one in page.data]
    assert sorted(before) == sorted(NAMES[:-1])


def test_a_page(client: anthropic.Anthropic) -> None:
    page = client.models.list(limit=2, before_id="b@tone")
    assert ([one.id for one in page.data], page.has_more) == (["b", "org/c"], True)
    page = client.models.list(limit=2, after_id="org/c")
    assert ([one.id for one in page.data], page.has_more) == (["b@tone", "e"], False)
    assert client.models.list(lifecycle=["retired"]).data == []
    assert len(client.models.list(lifecycle=["retired", "active"]).data) == len(NAMES)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"limit": 0}, "limit must be an integer from 1 to 1000"),
        ({"after_id": "a", "before_id": "b"}, "after_id and before_id exclude each other"),
        ({"after_id": "x"}, "after_id is 'x', but no model has that id"),
        ({"lifecycle": ["new"]}, "lifecycle must be one of"),
        ({"extra_query": {"order": "asc"}}, "order is not a known parameter"),
    ],
)
def test_what_cannot_be_honoured_is_refused(client: anthropic.Anthropic, query: dict[str, Any], said: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match=said) as caught:
        client.models.list(**query)
    assert caught.value.type == "invalid_request_error"


def test_an_unknown_model_is_an_error_in_its_format(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="'nonesuch' does not exist") as caught:
        client.models.retrieve("nonesuch")
    assert caught.value.type == "not_found_error"
