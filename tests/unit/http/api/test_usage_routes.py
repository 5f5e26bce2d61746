"""GET /usage: who sees what, by what it is grouped, and as CSV."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from starlette.testclient import TestClient

from helpers.usage_records import record, usage_database
from penstock.gateway.keys.identity import ALL_SCOPES, Identity, Scope
from penstock.gateway.ledger.ledger import Ledger
from penstock.gateway.ledger.store import UsageStore
from penstock.http import exception_handlers
from penstock.http.api import usage_routes
from penstock.http.middleware.auth import ApiKeyMiddleware
from penstock.http.middleware.request_id import RequestIdMiddleware
from penstock.http.routing import App
from penstock.http.service import Service

DAY = 86400.0


class Keys:
    """A key is the name of its tenant; `boss` is an admin's."""

    def identify(self, key: bytes) -> Identity | None:
        name = key.decode()
        scopes = {"boss": ALL_SCOPES, "writer": frozenset({Scope.INFERENCE})}
        return Identity(tenant=name, key=name, scopes=scopes.get(name, frozenset({Scope.OBSERVE}))) if key else None


@pytest.fixture
def ask(tmp_path: Path) -> Any:
    store = UsageStore(usage_database(tmp_path))
    store.add([
        record("a"), record("b", t=record("").t + DAY, model="big", microusd=1_000_000), record("c", tenant="beta"),
    ])  # fmt: skip
    store.close()
    return client(Ledger(store))


def client(ledger: Ledger | None) -> Any:
    app = App()
    manager = SimpleNamespace(keys=SimpleNamespace(name_of={"k1": "=front end"}.get))
    usage_routes.add(
        app, cast(Service, SimpleNamespace(accounting=SimpleNamespace(ledger=ledger), key_manager=manager))
    )
    exception_handlers.add(app)
    test_client = TestClient(RequestIdMiddleware(ApiKeyMiddleware(app, Keys())))

    def ask(key: str, query: str = "", **headers: str) -> httpx.Response:
        return cast(httpx.Response, test_client.get(f"/usage{query}", headers={"x-api-key": key, **headers}))

    return ask


def test_a_key_sees_its_own_tenant(ask: Any) -> None:
    found = ask("acme").json()
    assert [(row["model"], row["requests"], row["cost_usd"]) for row in found["data"]] == [
        ("big", 1, 1.0),
        ("m", 1, 7e-6),
    ]
    assert found["total"]["cost_usd"] == 1.000007
    assert (found["total"]["cache_savings_usd"], found["group_by"]) == (4e-6, ["model"])
    assert ask("nobody").json()["data"] == []
    assert ask("acme", "?tenant=acme").json() == found
    other = ask("acme", "?tenant=beta")
    assert (other.status_code, other.json()["error"]["code"]) == (403, "forbidden")
    assert ask("writer").status_code == 403


def test_an_admin_sees_all(ask: Any) -> None:
    rows = ask("boss", "?group_by=tenant,day").json()["data"]
    assert [(row["day"], row["tenant"]) for row in rows] == [
        ("2026-11-12", "acme"), ("2026-11-12", "beta"), ("2026-11-13", "acme"),
    ]  # fmt: skip
    assert ask("boss", "?group_by=&tenant=beta").json()["data"][0]["requests"] == 1
    (by_key,) = ask("boss", "?group_by=key&model=big").json()["data"]
    assert (by_key["key"], by_key["key_name"]) == ("k1", "=front end")
    (line,) = csv.DictReader(io.StringIO(ask("boss", "?group_by=key&model=big&format=csv").text))
    assert (line["key"], line["key_name"]) == ("k1", "'=front end")  # no formula of a spreadsheet


def test_times(ask: Any) -> None:
    for query, count in (
        ("from=2026-11-13", 1), ("to=2026-11-12", 2), ("from=2026-11-12&to=2026-11-13", 3), ("from=1794484801", 1),
        ("to=2026-11-12T12:00:00", 0), ("to=2026-11-12T13:00:01%2B01:00", 2),
    ):  # fmt: skip
        assert ask("boss", f"?{query}").json()["total"]["requests"] == count, query


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("from=yesterday", "from"),
        ("to=2026-13-01", "to"),
        ("group_by=user", "group_by"),
        ("by=day", "by"),
        ("format=xml", "format"),
        ("tenant=a%00b", "tenant"),
    ],
)
def test_what_is_wrong_is_named(ask: Any, query: str, param: str) -> None:
    answer = ask("boss", f"?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_csv(ask: Any) -> None:
    answer = ask("acme", "?group_by=day,model&format=csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [(row["day"], row["model"], row["cost_usd"]) for row in rows] == [
        ("2026-11-12", "m", "0.000007"), ("2026-11-13", "big", "1.000000"),
    ]  # fmt: skip
    assert ask("acme", "?group_by=day,model", accept="text/csv").text == answer.text


def test_too_many_rows_are_refused(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_routes, "MAX_ROWS", 1)
    assert ask("boss", "?group_by=tenant").json()["error"]["param"] == "group_by"


def test_a_server_without_a_ledger_says_so() -> None:
    answer = client(None)("boss")
    assert (answer.status_code, "--ledger" in answer.json()["error"]["message"]) == (404, True)
