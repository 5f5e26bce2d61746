"""What a server answers before its model is loaded."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from penstock.http import starting, ui
from penstock.http.start_status import StartStatus
from penstock.settings import Settings


@pytest.fixture
def status() -> StartStatus:
    return StartStatus("loading weights")


@pytest.fixture
def client(status: StartStatus) -> TestClient:
    return TestClient(starting.build(status, Settings()), base_url="http://127.0.0.1")


def test_the_phase_and_the_share_of_a_download(client: TestClient, status: StartStatus) -> None:
    assert client.get("/ready").json() == {"status": "starting", "phase": "loading weights"}
    status.download("smollm2", 5, 10)
    told = {"phase": "downloading the model", "done_bytes": 5, "total_bytes": 10}
    assert client.get("/health").json() == {"status": "ok", **told}
    status.begin("loading weights")
    assert client.get("/health").json() == {"status": "ok", "phase": "loading weights"}


def test_other_requests_are_told_to_come_back_in_the_format_of_their_api(client: TestClient) -> None:
    message = "the server is starting (loading weights); try again in a moment, or wait for /ready"
    for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("DELETE", "/nothing"), ("GET", "/")):
        answer = client.request(method, path)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"] == {
            "message": message, "type": "server_error", "param": None, "code": "model_loading",
        }  # fmt: skip
    assert client.post("/api/chat").json() == {"error": message}
    assert client.post("/v1/messages").json()["error"] == {"type": "overloaded_error", "message": message}


def test_the_web_interface_is_there(client: TestClient) -> None:
    built = (ui.FOLDER / "index.html").is_file()
    assert client.get("/ui/").status_code == (200 if built else 503)
    moved = client.get("/", headers={"accept": "text/html"}, follow_redirects=False)
    assert moved.headers["location"] == "/ui/"


def test_only_probes_are_answered_under_any_name(client: TestClient) -> None:
    assert client.get("/health", headers={"host": "evil.example"}).status_code == 200
    assert client.get("/ui/", headers={"host": "evil.example"}).status_code == 421
