"""Two servers over one PostgreSQL database: what one changes, the other acts on."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.postgresql import PostgresServer
from helpers.server_process import PATIENCE_S, Server, until
from helpers.tiny_models import ENDLESS_TOKENS

pytestmark = pytest.mark.databases

ADMIN = "the-operator"


@pytest.fixture(scope="module")
def url(postgres_server: PostgresServer) -> str:
    return postgres_server.url("shared keys")


@pytest.fixture(scope="module")
def servers(tiny: Path, url: str) -> Iterator[tuple[Server, Server]]:
    def start() -> Server:
        return Server(tiny, "--keys", "--kv-memory", "50MB", admin_key=ADMIN, database=url)

    with start() as one, start() as other:
        yield one, other


def ask(server: Server, method: str, path: str, key: str = ADMIN, **options: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.request(method, server.url + path, headers=headers, timeout=PATIENCE_S, **options)


def test_a_key_of_one_server_is_one_of_the_other_until_it_is_revoked(servers: tuple[Server, Server]) -> None:
    one, other = servers
    made = ask(one, "POST", "/admin/keys", json={"tenant": "acme", "tier": "interactive"}).json()
    key = made["key"]
    until(lambda: ask(other, "GET", "/v1/models", key).status_code == 200, "the key at the other server")
    body = {"prompt": "Once", "max_tokens": ENDLESS_TOKENS, "ignore_eos": True, "stream": True}
    headers = {"authorization": f"Bearer {key}"}
    with httpx.stream("POST", f"{other.api}/completions", json=body, headers=headers, timeout=PATIENCE_S) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert ask(one, "DELETE", f"/admin/keys/{made['id']}").json()["state"] == "revoked"
        events = [line for line in lines if line.startswith("data: ")]
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "key_revoked"
    assert ask(other, "GET", "/v1/models", key).json()["error"]["code"] == "key_revoked"
    entries = ask(other, "GET", "/admin/audit", params={"limit": 1}).json()["data"]
    assert (entries[0]["action"], entries[0]["target"]) == ("key.revoke", made["id"])


def test_known_keys_stay_valid_while_the_database_is_away(
    servers: tuple[Server, Server], postgres_server: PostgresServer
) -> None:
    one, _ = servers
    key = ask(one, "POST", "/admin/keys", json={"tenant": "acme"}).json()["key"]

    def state() -> Any:
        return httpx.get(f"{one.url}/ready", timeout=PATIENCE_S).json()["keys"]

    assert state() == "available"
    postgres_server.stop()
    try:
        until(lambda: state() == "unavailable", "the outage is noticed")
        assert ask(one, "GET", "/v1/models", key).status_code == 200
        refused = ask(one, "POST", "/admin/keys", json={"tenant": "acme"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "storage_unavailable")
        assert "127.0.0.1" not in refused.text
    finally:
        postgres_server.start()
    until(lambda: state() == "available", "the database is back")
    assert ask(one, "POST", "/admin/keys", json={"tenant": "acme"}).status_code == 200
