"""Files and batches as the openai SDK asks for them; lines are answered by a stub."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import openai
import pytest
from msgspec.structs import replace
from prometheus_client import generate_latest
from starlette import types
from starlette.requests import Request
from starlette.responses import Response
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Send

from helpers.batch_bench import CHAT, line
from penstock.deployment.protocol import State
from penstock.errors import InvalidRequest, ModelNotFound, PenstockError, UpstreamFailed
from penstock.flow.identity import UNNAMED
from penstock.gateway.breaker import MIN_FAILURES
from penstock.gateway.gateway import ChainLink, Gateway
from penstock.gateway.keys.directory import NoKeys
from penstock.gateway.keys.identity import ANONYMOUS, Identity, Scope
from penstock.gateway.router import Router
from penstock.http.api.openai import batch_routes, file_routes
from penstock.http.background import BATCH
from penstock.http.error_response import error_response
from penstock.http.json_response import json_response
from penstock.http.middleware.body_limit import BodyLimitMiddleware
from penstock.http.routing import App
from penstock.observe.metrics import PrometheusMetrics
from penstock.settings import ServeSettings, Settings

MAX_FILE = 10_000


class StubService:
    """The parts of a Service that batches use."""

    closing = False
    open = 0
    batches: Any = None
    batch_data: Any = None

    def __init__(self) -> None:
        self.metrics = PrometheusMetrics(UNNAMED)
        self.models = self
        self.keys = NoKeys()
        self.open_by_model: Counter[str] = Counter()
        self.gateway = Gateway(Router(), cast(Any, self.find))

    def models_of(self, identity: Identity) -> StubService:
        return self

    def find(self, name: str) -> Any:
        if name != "tiny":
            raise ModelNotFound("no such model", param="model")
        deployments = [SimpleNamespace(name="tiny/0")]
        return SimpleNamespace(card=SimpleNamespace(name=name), state=State.READY, deployments=deployments)


class AsTenant:
    """Takes the place of the guards: the tenant is the key."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: types.Scope, receive: Receive, send: Send) -> None:
        key = dict(scope.get("headers", ())).get(b"authorization", b"").decode()
        scope["state"] = {"identity": replace(ANONYMOUS, tenant=key.removeprefix("Bearer ")), "request_id": "r"}
        await self.app(scope, receive, send)


@pytest.fixture
def service() -> StubService:
    return StubService()


@pytest.fixture
def http(tmp_path: Path, service: StubService) -> Iterator[TestClient]:
    app = App()
    batch_routes.add(app, cast(Any, service), Settings(serve=ServeSettings(data_dir=str(tmp_path / "data"))))

    @app.requiring(Scope.INFERENCE).post(CHAT)
    async def chat(request: Request) -> Response:
        text = (await request.json())["messages"][0]["content"]
        if text == "bad":
            raise InvalidRequest("temperature is wrong", param="temperature")
        if text == "broken":
            raise RuntimeError("a bug")
        state = request.scope["state"]
        return json_response(
            json.dumps({"echo": text, "tenant": state["identity"].tenant, "batch": BATCH.get()}).encode()
        )

    async def on_error(request: Request, error: Exception) -> Response:
        return error_response(error, request.scope)

    app.add_exception_handler(PenstockError, on_error)
    app.add_exception_handler(Exception, on_error)
    limited = BodyLimitMiddleware(app, 1000, streamed={file_routes.PATH: MAX_FILE})
    with TestClient(AsTenant(limited), base_url="http://127.0.0.1:8000") as client:
        yield client
        assert client.portal is not None
        client.portal.call(service.batches.close)


@pytest.fixture
def client(http: TestClient) -> openai.OpenAI:
    return openai.OpenAI(
        base_url="http://127.0.0.1:8000/v1", api_key="alice", http_client=cast(Any, http), max_retries=0
    )


def upload(client: openai.OpenAI, *names: str, **options: Any) -> openai.types.FileObject:
    content = "\n".join(json.dumps(line(name)) for name in names).encode()
    return client.files.create(file=("in.jsonl", content), purpose="batch", **options)


def run(client: openai.OpenAI, file: str, **options: Any) -> openai.types.Batch:
    batch = client.batches.create(input_file_id=file, endpoint=CHAT, completion_window="24h", **options)
    assert (batch.status, batch.object, batch.expires_at) == ("validating", "batch", batch.created_at + 86400)
    while batch.status in ("validating", "in_progress", "finalizing"):
        batch = client.batches.retrieve(batch.id)
    return batch


def read(client: openai.OpenAI, name: str | None) -> list[dict[str, Any]]:
    assert name is not None
    return [json.loads(text) for text in client.files.content(name).text.splitlines()]


def test_a_batch_from_upload_to_download(client: openai.OpenAI, service: StubService) -> None:
    file = upload(client, "a", "bad", "b")
    assert (file.object, file.purpose, file.filename, file.status) == ("file", "batch", "in.jsonl", "processed")
    assert file.expires_at == file.created_at + 30 * 86400
    assert client.files.content(file.id).read().count(b"\n") == 2
    batch = run(client, file.id, metadata={"team": "x"})
    assert (batch.status, batch.metadata, batch.model) == ("completed", {"team": "x"}, "tiny")
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 3, "completed": 2, "failed": 1}
    output = read(client, batch.output_file_id)
    assert [one["response"]["body"] for one in output] == [
        {"echo": name, "tenant": "alice", "batch": batch.id} for name in ("a", "b")
    ]
    (error,) = read(client, batch.error_file_id)
    assert (error["custom_id"], error["error"]) == ("bad", None)
    assert error["response"]["status_code"] == 400
    assert error["response"]["body"]["error"]["param"] == "temperature"
    text = generate_latest(service.metrics.registry).decode()
    assert 'penstock_batches_total{status="completed"} 1.0' in text
    assert 'penstock_batch_lines_total{result="failed"} 1.0' in text


def test_lines_wait_while_the_circuit_of_their_upstream_is_open(client: openai.OpenAI, service: StubService) -> None:
    limiter = service.batches.limiters.of("tiny")
    most = limiter.limit()
    for _ in range(MIN_FAILURES):
        service.gateway.router.fail("tiny/0", UpstreamFailed("502"))
    assert (most, limiter.limit()) == (batch_routes.UPSTREAM_SLOTS * 3 // 4, 0)
    service.gateway.chains["tiny"] = [ChainLink("other")]  # which answers them meanwhile
    assert limiter.limit() == most


def test_a_bug_fails_its_line_alone(client: openai.OpenAI, caplog: pytest.LogCaptureFixture) -> None:
    batch = run(client, upload(client, "broken", "a").id)
    (error,) = read(client, batch.error_file_id)
    assert error["response"]["status_code"] == 500
    assert "a bug" not in json.dumps(error)
    assert [one["custom_id"] for one in read(client, batch.output_file_id)] == ["a"]


def test_lists_and_pages(client: openai.OpenAI) -> None:
    files = [upload(client, "a").id for _ in range(3)]
    assert [one.id for one in client.files.list()] == files[::-1]
    assert [one.id for one in client.files.list(order="asc", limit=2)] == files  # the SDK follows the pages
    assert client.files.list(order="asc", limit=2).has_more
    assert [one.id for one in client.files.list(after=files[1], order="asc").data] == files[2:]
    batches = [run(client, files[0]).id for _ in range(3)]
    assert [one.id for one in client.batches.list(limit=2)] == batches[::-1]
    assert len(client.files.list(purpose="batch_output").data) == 3
    with pytest.raises(openai.BadRequestError, match="no entry has that id"):
        client.files.list(after="file-unknown")


def test_deleted_files_are_gone(client: openai.OpenAI) -> None:
    file = upload(client, "a")
    assert client.files.delete(file.id).to_dict() == {"id": file.id, "object": "file", "deleted": True}
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError, match="there is no file"):
            call(file.id)
    with pytest.raises(openai.NotFoundError) as caught:
        run(client, file.id)
    assert caught.value.param == "input_file_id"


def test_other_tenants_have_nothing(client: openai.OpenAI) -> None:
    file = upload(client, "a")
    batch = run(client, file.id)
    bob = client.with_options(api_key="bob")
    assert not bob.files.list().data
    assert not bob.batches.list().data
    for call in (bob.files.retrieve, bob.files.content, bob.files.delete):
        with pytest.raises(openai.NotFoundError):
            call(file.id)
    for act in (bob.batches.retrieve, bob.batches.cancel):
        with pytest.raises(openai.NotFoundError, match="there is no batch"):
            act(batch.id)


def test_a_batch_that_has_ended_cannot_be_cancelled(client: openai.OpenAI) -> None:
    batch = run(client, upload(client, "a").id)
    with pytest.raises(openai.BadRequestError, match="'completed' cannot be cancelled"):
        client.batches.cancel(batch.id)


def test_a_wrong_file_fails_with_its_errors(client: openai.OpenAI) -> None:
    file = client.files.create(file=("x.jsonl", b'{"custom_id": 1}\nno'), purpose="batch")
    batch = run(client, file.id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [(one.code, one.line) for one in batch.errors.data or ()] == [
        ("missing_required_parameter", 1),
        ("invalid_json_line", 2),
    ]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, "output_expires_after.seconds"),
        ({"extra": 1}, "extra"),
        ({"input_file_id": None}, "input_file_id"),
    ],
)
def test_wrong_fields_are_named(client: openai.OpenAI, http: TestClient, changes: dict[str, Any], param: str) -> None:
    body = {"input_file_id": "file-x", "endpoint": CHAT, "completion_window": "24h"} | changes
    answer = http.post("/v1/batches", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_file_of_another_purpose_is_rejected(client: openai.OpenAI) -> None:
    batch = run(client, upload(client, "a").id)
    assert batch.output_file_id is not None
    with pytest.raises(openai.BadRequestError, match="'batch_output'"):
        run(client, batch.output_file_id)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "purpose"),
        ({"purpose": "fine-tune"}, "purpose"),
        ({"purpose": "batch", "other": "x"}, "other"),
        (
            {"purpose": "batch", "expires_after[anchor]": "now", "expires_after[seconds]": "3600"},
            "expires_after[anchor]",
        ),
        ({"purpose": "batch", "expires_after[anchor]": "created_at"}, "expires_after[seconds]"),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"},
            "expires_after[seconds]",
        ),
    ],
)
def test_wrong_fields_of_an_upload_are_named(http: TestClient, fields: dict[str, str], param: str) -> None:
    answer = http.post("/v1/files", data=fields, files={"file": b"x"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not http.get("/v1/files").json()["data"]


def test_an_upload_expires_as_asked(client: openai.OpenAI) -> None:
    file = upload(client, "a", expires_after={"anchor": "created_at", "seconds": 7200})
    assert file.expires_at == file.created_at + 7200


def test_uploads_that_cannot_be_taken(client: openai.OpenAI, http: TestClient, tmp_path: Path) -> None:
    with pytest.raises(openai.BadRequestError, match="the file is empty"):
        client.files.create(file=("in.jsonl", b""), purpose="batch")
    with pytest.raises(openai.APIStatusError, match="larger than 10000 bytes") as caught:
        client.files.create(file=("in.jsonl", b"x" * MAX_FILE), purpose="batch")
    assert caught.value.status_code == 413

    def pieces() -> Iterator[bytes]:  # of unknown length
        yield b'--e\r\ncontent-disposition: form-data; name="file"\r\n\r\n'
        yield b"x" * MAX_FILE

    headers = {"content-type": "multipart/form-data; boundary=e"}
    assert http.post("/v1/files", content=pieces(), headers=headers).status_code == 413
    assert http.post("/v1/files", json={"purpose": "batch"}).status_code == 415
    assert list((tmp_path / "data" / "files").iterdir()) == []


def test_a_full_disk_is_said(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("penstock.batch.file_area.MIN_FREE_BYTES", 1 << 60)
    with pytest.raises(openai.APIStatusError, match="no room") as caught:
        upload(client, "a")
    assert caught.value.status_code == 507


@pytest.mark.parametrize(
    ("origin", "status"),
    [("https://evil.example", 403), ("null", 403), ("http://127.0.0.1:8000", 200)],
)
def test_pages_of_other_origins_cannot_upload(http: TestClient, origin: str, status: int) -> None:
    answer = http.post("/v1/files", data={"purpose": "batch"}, files={"file": b"x"}, headers={"origin": origin})
    assert answer.status_code == status
