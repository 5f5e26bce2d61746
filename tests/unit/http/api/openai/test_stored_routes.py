"""Chat completions that were kept, as the openai SDK asks for them; without an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import openai
import pytest
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from helpers.openai_samples import CHAT, choice, completion, raw
from penstock.errors import PenstockError
from penstock.flow import Chunk, Completion
from penstock.gateway.keys.identity import ANONYMOUS
from penstock.http.api.openai import stored_routes
from penstock.http.api.openai.chat import ChatWriter
from penstock.http.api.openai.schemas import ChatCompletionRequest
from penstock.http.error_response import error_response
from penstock.http.parse.schema import parse
from penstock.http.response_store import MemoryResponseStore, NewResponse
from penstock.http.routing import App

DONE = [completion([1], choice(0, "Hi", [2]))]


class StoringWriter(ChatWriter):
    """Stores what it has noted, as the response does before it is sent."""

    def __init__(self, kept: MemoryResponseStore, name: str, **fields: object) -> None:
        body = parse(ChatCompletionRequest, raw({**CHAT, **fields}))
        self.new = NewResponse(kept, "alice")
        options = {"model": "tiny", "created": 1_700_000_000, "vocabulary": None, "store": self.new.note}
        super().__init__(body, request_id=name, **options)  # type: ignore[arg-type]

    def full_response(self, completions: Sequence[Completion]) -> bytes:
        answer = super().full_response(completions)
        asyncio.run(self.new.put())
        return answer


writer = StoringWriter


class AsTenant:
    """Takes the place of the guards: the tenant is the key."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = dict(scope.get("headers", ())).get(b"authorization", b"").decode()
        scope["state"] = {"identity": replace(ANONYMOUS, tenant=key.removeprefix("Bearer ")), "request_id": "r"}
        await self.app(scope, receive, send)


@pytest.fixture
def store() -> MemoryResponseStore:
    return MemoryResponseStore(what="completion")


@pytest.fixture
def app(store: MemoryResponseStore) -> ASGIApp:
    app = App()
    stored_routes.add(app, store)

    async def on_error(request: Request, error: Exception) -> Response:
        return error_response(error, request.scope)

    app.add_exception_handler(PenstockError, on_error)
    return AsTenant(app)


@pytest.fixture
def client(app: ASGIApp) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url="http://x/v1", api_key="alice", http_client=TestClient(app), max_retries=0) as client:
        yield client


def test_only_what_is_asked_for_is_kept(store: MemoryResponseStore) -> None:
    writer(store, "1").full_response(DONE)
    writer(store, "2", store=False, metadata={"a": "b"}).full_response(DONE)
    assert len(store) == 0


def test_a_kept_completion(store: MemoryResponseStore, client: openai.OpenAI) -> None:
    writer(store, "1", store=True, metadata={"topic": "tea"}).full_response(DONE)

    found = client.chat.completions.retrieve("chatcmpl-1")
    said = client.chat.completions.messages.list("chatcmpl-1")

    assert (found.choices[0].message.content, found.metadata) == ("Hi", {"topic": "tea"})  # type: ignore[attr-defined]
    assert [(one.role, one.content) for one in said.data] == [("user", "Hello!")]


def test_a_stream_is_kept_when_it_is_over(store: MemoryResponseStore, client: openai.OpenAI) -> None:
    write = writer(store, "1", store=True, stream=True)
    write.first(0, 0, [1])
    write.chunk(0, Chunk(0, "Hi", [2]))
    assert len(store) == 0
    assert write.last(DONE) == []

    assert client.chat.completions.retrieve("chatcmpl-1").choices[0].message.content == "Hi"


def test_listing(store: MemoryResponseStore, client: openai.OpenAI) -> None:
    for number in range(5):
        writer(store, str(number), store=True, metadata={"even": str(number % 2 == 0)}).full_response(DONE)

    def ids(**query: object) -> list[str]:
        return [one.id.removeprefix("chatcmpl-") for one in client.chat.completions.list(**query)]  # type: ignore[arg-type]

    assert ids() == ids(limit=2) == ["0", "1", "2", "3", "4"]  # the SDK turns the pages
    assert ids(order="desc") == ["4", "3", "2", "1", "0"]
    assert ids(metadata={"even": "True"}) == ["0", "2", "4"]
    assert (ids(model="tiny", after="chatcmpl-3"), ids(model="other")) == (["4"], [])


def test_metadata_can_be_changed(store: MemoryResponseStore, client: openai.OpenAI) -> None:
    writer(store, "1", store=True, metadata={"a": "b"}).full_response(DONE)
    before = store.num_bytes

    client.chat.completions.update("chatcmpl-1", metadata={"a": "c"})

    assert client.chat.completions.retrieve("chatcmpl-1").metadata == {"a": "c"}  # type: ignore[attr-defined]
    assert (len(store), store.num_bytes) == (1, before)


def test_deleting(store: MemoryResponseStore, client: openai.OpenAI) -> None:
    writer(store, "1", store=True).full_response(DONE)
    assert client.chat.completions.delete("chatcmpl-1").deleted
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.retrieve("chatcmpl-1")


def test_for_other_tenants_there_is_no_such_completion(store: MemoryResponseStore, client: openai.OpenAI) -> None:
    writer(store, "1", store=True).full_response(DONE)
    bob = client.with_options(api_key="bob").chat.completions
    for ask in (bob.retrieve, bob.delete, bob.messages.list):
        with pytest.raises(openai.NotFoundError, match="no completion 'chatcmpl-1'"):
            ask("chatcmpl-1")
    with pytest.raises(openai.NotFoundError):
        bob.update("chatcmpl-1", metadata={})
    assert (bob.list().data, len(store)) == ([], 1)


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "order=up", "after=nobody", "nonsense=1"])
def test_what_is_refused(app: ASGIApp, query: str) -> None:
    answer = TestClient(app).get(f"/v1/chat/completions?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.partition("=")[0])
