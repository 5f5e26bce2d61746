"""Routes of kept responses, without an engine: whose they are, and what they refuse."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.errors import PenstockError
from penstock.gateway.keys.identity import ANONYMOUS
from penstock.http.api.responses import routes
from penstock.http.error_response import error_response
from penstock.http.response_store import MemoryResponseStore, StoredResponse
from penstock.http.routing import App
from penstock.http.service import Service

PATHS = [
    ("GET", "/v1/responses/resp_1"),
    ("GET", "/v1/responses/resp_1?stream=true"),
    ("GET", "/v1/responses/resp_1/input_items"),
    ("POST", "/v1/responses/resp_1/cancel"),
    ("DELETE", "/v1/responses/resp_1"),
]


class AsTenant:
    """Takes the place of the guards: the tenant is in a header."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        scope["state"] = {
            "identity": replace(ANONYMOUS, tenant=headers.get(b"x-tenant", b"").decode()),
            "request_id": "r",
        }
        await self.app(scope, receive, send)


@pytest.fixture
def client(response: bytes) -> TestClient:
    store = MemoryResponseStore()
    asyncio.run(store.put("alice", "resp_1", StoredResponse(response, b"[]", items=b'[{"id": "a"}]')))
    app = App()
    routes.add(app, cast(Service, None), store)

    async def on_error(request: Request, error: Exception) -> Response:
        return error_response(error, request.scope)

    app.add_exception_handler(PenstockError, on_error)
    return TestClient(AsTenant(app))


@pytest.fixture
def response() -> bytes:
    body: dict[str, Any] = {
        "id": "resp_1", "created_at": 1, "status": "completed", "instructions": None, "max_output_tokens": None,
        "model": "m", "output": [], "parallel_tool_calls": True, "previous_response_id": None,
        "reasoning": {"effort": None}, "store": True, "temperature": 1.0, "text": {"format": {"type": "text"}},
        "tool_choice": "auto", "tools": [], "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
        "top_logprobs": 0, "usage": None, "user": None, "safety_identifier": None, "prompt_cache_key": None,
        "metadata": {},
    }  # fmt: skip
    return msgspec.json.encode(body)


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_for_other_tenants_there_is_no_such_response(client: TestClient, method: str, path: str) -> None:
    for tenant in ("bob", ""):
        answer = client.request(method, path, headers={"x-tenant": tenant})
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "response_id")
        assert "no response 'resp_1'" in answer.json()["error"]["message"]
    wanted = 400 if path.endswith("cancel") else 200
    assert client.request(method, path, headers={"x-tenant": "alice"}).status_code == wanted


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("?stream=1", "stream"),
        ("?starting_after=1", "starting_after"),
        ("?stream=true&starting_after=-1", "starting_after"),
        ("?include=x", "include"),
        ("?include[]=message.output_text.logprobs", "include"),
        ("?include_obfuscation=true", "include_obfuscation"),
        ("?verbose=true", "verbose"),
        ("/input_items?limit=0", "limit"),
        ("/input_items?limit=101", "limit"),
        ("/input_items?order=up", "order"),
        ("/input_items?after=b", "after"),
        ("/input_items?before=a", "before"),
    ],
)
def test_what_is_wrong_is_named(client: TestClient, query: str, param: str) -> None:
    answer = client.get(f"/v1/responses/resp_1{query}", headers={"x-tenant": "alice"})

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_stream_is_taken_up_behind_its_last_event(client: TestClient) -> None:
    path = "/v1/responses/resp_1?stream=true&starting_after="
    texts = [client.get(path + str(number), headers={"x-tenant": "alice"}) for number in (0, 1, 2)]

    assert [text.headers["content-type"] for text in texts] == ["text/event-stream; charset=utf-8"] * 3
    assert [text.text.count("event: ") for text in texts] == [2, 1, 0]
    assert texts[1].text.startswith("event: response.completed")
