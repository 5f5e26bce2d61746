"""Keys of a database on a running server: two keys of one tenant share what is theirs, another tenant sees nothing of
it, and what another program changes acts on requests that run."""

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.key_stores import BOSS
from helpers.server_process import PATIENCE_S, Server, until
from helpers.tiny_models import ENDLESS_TOKENS
from penstock.database.database import open_database
from penstock.gateway.keys.store import KeyStore

ADMIN = "the-operator"
PIN = "It was a dark and stormy night, and nobody but Alice knew what the door would ask her for. My PIN is 4711."


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Server]:
    with Server(tiny, "--keys", "--kv-memory", "100MB", "--keep-texts", admin_key=ADMIN) as server:
        yield server


@pytest.fixture(scope="module")
def store(server: Server) -> Iterator[KeyStore]:
    """As `penstock keys` opens it."""
    database = open_database(f"sqlite:///{server.data_folder.name}/tenants.db")
    yield KeyStore(database)
    database.close()


def client(server: Server, key: str) -> httpx.Client:
    return httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE_S)


def new_client(server: Server, tenant: str, **fields: Any) -> httpx.Client:
    with client(server, ADMIN) as boss:
        made = boss.post("/admin/keys", json={"tenant": tenant, "scopes": ["inference", "observe"], **fields})
    assert made.status_code == 200, made.text
    http = client(server, made.json()["key"])
    http.headers["x-key-id"] = made.json()["id"]  # for the tests; servers ignore it
    return http


@pytest.fixture(scope="module")
def alice(server: Server) -> Iterator[httpx.Client]:
    with new_client(server, "wonderland") as http:
        yield http


@pytest.fixture(scope="module")
def hatter(server: Server) -> Iterator[httpx.Client]:
    """Of the same tenant."""
    with new_client(server, "wonderland") as http:
        yield http


@pytest.fixture(scope="module")
def bob(server: Server) -> Iterator[httpx.Client]:
    with new_client(server, "builders") as http:
        yield http


def post(http: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 4, **more}


# --- tenants


def test_keys_of_a_tenant_share_cached_prefixes_and_others_do_not(
    alice: httpx.Client, hatter: httpx.Client, bob: httpx.Client
) -> None:
    def cached(http: httpx.Client) -> int:
        usage = post(http, "/v1/completions", prompt=PIN, max_tokens=2)["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    def explained(http: httpx.Client) -> int:
        return int(post(http, "/observe/cache/explain", prompt=PIN)["cached_tokens"])

    assert cached(alice) == 0
    assert explained(bob) == 0
    assert cached(bob) == 0
    assert explained(hatter) > 0
    assert cached(hatter) > 0


def test_what_a_tenant_stores_is_for_its_keys_alone(
    alice: httpx.Client, hatter: httpx.Client, bob: httpx.Client
) -> None:
    response = post(alice, "/v1/responses", input=PIN, max_output_tokens=16)["id"]
    completion = post(alice, "/v1/chat/completions", **chat(PIN, store=True))["id"]
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {**chat("hi"), "model": None}}
    name = alice.get("/v1/models").json()["data"][0]["id"]
    line["body"]["model"] = name  # type: ignore[index]
    upload = alice.post("/v1/files", files={"file": ("in.jsonl", json.dumps(line))}, data={"purpose": "batch"})
    file = upload.json()["id"]
    batch = post(alice, "/v1/batches", input_file_id=file, endpoint="/v1/chat/completions", completion_window="24h")[
        "id"
    ]
    record = completion.removeprefix("chatcmpl-")
    paths = {
        f"/v1/responses/{response}": response,
        f"/v1/responses/{response}/input_items": response,
        f"/v1/chat/completions/{completion}": completion,
        f"/v1/chat/completions/{completion}/messages": completion,
        f"/v1/files/{file}": file,
        f"/v1/files/{file}/content": file,
        f"/v1/batches/{batch}": batch,
        f"/observe/requests/{record}": record,
    }
    for path, name in paths.items():
        assert alice.get(path).status_code == hatter.get(path).status_code == 200, path
        unknown = name[:-8] + "00000000"
        hidden, missing = bob.get(path), bob.get(path.replace(name, unknown))
        assert (hidden.status_code, missing.status_code) == (404, 404), path
        assert hidden.text.replace(name, unknown) == missing.text, "an error reveals whether it exists"
    for path in ("/v1/chat/completions", "/v1/files", "/v1/batches"):
        assert bob.get(path).json()["data"] == []
        assert hatter.get(path).json()["data"] != []
    listed = bob.get("/observe/requests").json()["requests"]
    assert record not in {one["id"] for one in listed}
    assert bob.post("/v1/responses", json={"input": "a", "previous_response_id": response}).status_code == 404
    body = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    assert bob.post("/v1/batches", json=body).status_code == 404
    until(lambda: alice.get(f"/v1/batches/{batch}").json()["status"] == "completed", "the batch has run")
    assert post(hatter, "/v1/responses", input="PIN?", previous_response_id=response, max_output_tokens=16)["id"]


def test_metrics_by_tenant_are_for_operators(server: Server, alice: httpx.Client, bob: httpx.Client) -> None:
    for http in (alice, bob):
        post(http, "/v1/completions", prompt="hi", max_tokens=1)
        text = http.get("/metrics").text
        assert "penstock_prompt_tokens_total" in text
        assert not re.search("wonderland|builders", text)
    with client(server, ADMIN) as boss:
        assert {"builders", "wonderland"} <= set(re.findall(r'tenant="(\w+)"', boss.get("/metrics").text))


def test_other_models_do_not_exist_for_a_key(server: Server) -> None:
    with new_client(server, "wonderland", models=["another"]) as http:
        assert http.get("/v1/models").json()["data"] == []
        assert http.get("/api/tags").json()["models"] == []
        name = server.model
        for path, body in (
            ("/v1/chat/completions", chat("hi", model=name)),
            ("/v1/completions", {"prompt": "hi", "model": name}),
            ("/v1/messages", chat("hi", model=name)),
            ("/v1/responses", {"input": "hi", "model": name}),
            ("/v1/embeddings", {"input": "hi", "model": name}),
            ("/api/chat", chat("hi", model=name) | {"max_tokens": None}),
            ("/api/show", {"model": name}),
            ("/tokenize", {"prompt": "hi", "model": name}),
            ("/observe/lab", {"prompt": "hi", "model": name}),
            ("/observe/cache/explain", {"prompt": "hi", "model": name}),
            ("/plan", {}),
            ("/v1/chat/completions", chat("hi")),
        ):
            body = {field: value for field, value in body.items() if value is not None}
            answer = http.post(path, json=body)
            assert answer.status_code == 404, f"{path}: {answer.text}"
        for path in ("/observe/facts", "/observe/steps", "/observe/live", "/observe/replay", "/observe/cache",
                     "/observe/cache/tree"):  # fmt: skip
            assert http.get(path).status_code == http.get(path, params={"model": name}).status_code == 404, path
        assert http.get("/version").status_code == http.get("/plan/presets").status_code == 404
        hidden = http.post("/v1/completions", json={"prompt": "hi", "model": name}).text
        assert (
            hidden.replace(name, "nothing")
            == http.post("/v1/completions", json={"prompt": "hi", "model": "nothing"}).text
        )


def test_max_tokens_of_a_key(server: Server) -> None:
    with new_client(server, "wonderland", default_max_tokens=3, max_tokens=6) as http:
        answer = post(http, "/v1/chat/completions", messages=chat("hi")["messages"], ignore_eos=True)
        assert answer["usage"]["completion_tokens"] == 3
        refused = http.post("/v1/chat/completions", json={**chat("hi"), "max_tokens": None, "max_completion_tokens": 7})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "max_completion_tokens"


# --- keys


def test_hostile_keys_are_rejected(server: Server, alice: httpx.Client) -> None:
    key = alice.headers["authorization"].removeprefix("Bearer ")
    secret = key.split("-")[3]
    hostile = [
        "none", "' OR '1'='1", "sk-penstock-' OR 1=1; DROP TABLE keys; ---" + secret,
        f"sk-penstock-{'0' * 12}-{secret}",
        key[:-1], key + "x", key.upper(), "x" * 20_000, f"{key}, {key}",
    ]  # fmt: skip
    for name in ("authorization", "x-api-key"):
        for text in hostile:
            value = f"Bearer {text}" if name == "authorization" else text
            found = httpx.get(f"{server.url}/v1/models", headers={name: value}, timeout=PATIENCE_S)
            assert found.status_code == 401, text[:80]
    assert alice.get("/v1/models").status_code == 200
    for raw in (key.encode() + b"\x00", "sk-penstock-ключ".encode(), b"\xff\xfe", b"k" * 300_000):
        assert _status(server, raw) in (400, 401, 431), raw[:20]
    assert alice.get("/v1/models").status_code == 200


def _status(server: Server, key: bytes) -> int:
    """Past a client that would refuse to send it. 431: the connection was closed while it was sent."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        try:
            connection.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-api-key: " + key + b"\r\n\r\n")
            answer = connection.recv(4096)
        except OSError:
            return 431
    return int(answer.split(b" ")[1]) if answer else 431


@pytest.mark.parametrize(("how", "streamed"), [("revoked", True), ("revoked", False), ("expired", True)])
def test_running_requests_end_when_their_key_does(server: Server, store: KeyStore, streamed: bool, how: str) -> None:
    """Changed by another program. A request that runs ends with an error that says why; the next is refused."""
    with new_client(server, "wonderland") as http, client(server, ADMIN) as boss:
        name = http.headers["x-key-id"]
        body = {"prompt": "Once", "max_tokens": ENDLESS_TOKENS, "ignore_eos": True, "stream": streamed}

        def end() -> None:
            if how == "revoked":
                store.revoke_key(name, BOSS)
            else:
                store.update_key(name, {"expires_at": int(time.time()) + 3}, BOSS)

        if streamed:
            with http.stream("POST", "/v1/completions", json=body) as stream:
                lines = stream.iter_lines()
                next(lines)
                end()
                events = [line for line in lines if line.startswith("data: ")]
            told = json.loads(events[-1].removeprefix("data: "))["error"]
        else:
            end()  # acts a moment later, once the request runs or before
            answer = http.post("/v1/completions", json=body)
            assert answer.status_code == 401
            told = answer.json()["error"]
        assert told["code"] == f"key_{how}"
        until(lambda: http.get("/v1/models").status_code == 401, "the key is refused")
        assert http.get("/v1/models").json()["error"]["code"] == f"key_{how}"
        check = boss.get("/observe/check").json()
        assert check["ok"], check
        running = re.compile(r"^penstock_num_requests_running\{.*\} 0\.0$", re.MULTILINE)
        until(lambda: running.search(boss.get("/metrics").text), "nothing runs any more")


def test_a_live_feed_ends_with_its_key(server: Server, store: KeyStore) -> None:
    with new_client(server, "wonderland") as http, http.stream("GET", "/observe/live") as stream:
        lines = stream.iter_lines()
        next(lines)
        store.revoke_key(http.headers["x-key-id"], BOSS)
        rest = "\n".join(lines)
    assert "event: error" in rest
    assert "key_revoked" in rest


def test_a_batch_of_a_revoked_key_fails_line_by_line(server: Server, store: KeyStore, alice: httpx.Client) -> None:
    with new_client(server, "wonderland") as http:
        body = {**chat("hi", max_tokens=ENDLESS_TOKENS, ignore_eos=True), "model": server.model}
        line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
        upload = http.post("/v1/files", files={"file": ("in.jsonl", json.dumps(line))}, data={"purpose": "batch"})
        batch = post(
            http, "/v1/batches", input_file_id=upload.json()["id"], endpoint="/v1/chat/completions",
            completion_window="24h",
        )["id"]  # fmt: skip
        store.revoke_key(http.headers["x-key-id"], BOSS)

    def ended() -> dict[str, Any]:
        found = alice.get(f"/v1/batches/{batch}").json()
        return found if found["status"] in ("completed", "failed") else {}

    found = until(ended, "the end of the batch")
    if found["status"] == "failed":  # revoked before its file was checked
        assert "revoked" in json.dumps(found["errors"])
    else:
        errors = alice.get(f"/v1/files/{found['error_file_id']}/content").json()
        assert errors["response"]["body"]["error"]["code"] == "key_revoked"


def test_every_administrative_action_is_in_the_audit_log(server: Server, alice: httpx.Client) -> None:
    with client(server, ADMIN) as boss:
        made = boss.post("/admin/keys", json={"tenant": "audited", "name": "one"}).json()
        name = made["id"]
        assert boss.post(f"/admin/keys/{name}", json={"tier": "bulk"}).json()["tier"] == "bulk"
        rotated = boss.post(f"/admin/keys/{name}/rotate", json={"grace_s": 60}).json()
        assert boss.delete(f"/admin/keys/{name}").json()["state"] == "revoked"
        assert boss.post("/admin/tenants/audited", json={"weight": 2}).json()["weight"] == 2
        assert boss.post("/admin/load").status_code == 200
        refused = boss.post("/admin/models", json={"name": server.model, "model": "x"})
        assert refused.status_code >= 400
        entries = boss.get("/admin/audit", params={"limit": 8}).json()["data"]
        assert [(entry["action"], entry["outcome"]) for entry in reversed(entries)] == [
            ("tenant.create", "ok"), ("key.create", "ok"), ("key.update", "ok"), ("key.rotate", "ok"),
            ("key.revoke", "ok"), ("tenant.update", "ok"), ("model.load", "ok"),
            ("model.add", refused.json()["error"]["code"]),
        ]  # fmt: skip
        assert {entry["actor"].split(":")[0] for entry in entries} == {"key"}
        assert all(entry["request_id"].startswith("req-") for entry in entries)
        shown = [boss.get(path).text for path in ("/admin/audit", "/admin/keys", f"/admin/keys/{name}")]
        for secret in (made["key"].split("-")[3], rotated["key"].split("-")[3]):
            assert all(secret not in text for text in (*shown, server.log))
        for method, path in (("GET", "/admin/keys/x"), ("DELETE", "/admin/keys/%00"), ("GET", "/admin/tenants/%FF")):
            assert boss.request(method, path).status_code == 404
        assert boss.post("/admin/keys", json={"tenant": "a", "tier": "gold"}).json()["error"]["param"] == "tier"
    assert alice.get("/admin/keys").status_code == 403
    assert "database" not in alice.get("/observe/facts").json()["settings"]["tenants"]
