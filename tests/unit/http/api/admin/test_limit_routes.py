from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from starlette.testclient import TestClient

from helpers.key_stores import BOSS, Clock, fill_store, load_keys, open_store
from penstock.errors import LimitsUnavailable
from penstock.gateway.keys.directory import NoKeys
from penstock.gateway.keys.manager import KeyManager
from penstock.gateway.keys.records import Wanted
from penstock.gateway.keys.store import KeyStore
from penstock.gateway.limits.limiter import Limiter
from penstock.gateway.limits.local_limiter import LocalLimiter
from penstock.gateway.limits.reservation import Charge
from penstock.http import exception_handlers
from penstock.http.api.admin import key_routes, limit_routes, tenant_routes
from penstock.http.middleware.auth import ApiKeyMiddleware
from penstock.http.middleware.request_id import RequestIdMiddleware
from penstock.http.routing import App
from penstock.http.service import Service

LIMITS = {"requests_per_minute": 10, "tokens_per_minute": 1000, "usd_per_day": 1.5}


def client(store: KeyStore | None, limiter: Limiter | None) -> TestClient:
    """With the routes of keys, tenants and limits."""
    app = App()
    manager = None if store is None else KeyManager(store, load_keys(store, Clock()))
    keys = NoKeys() if manager is None else manager.keys
    service = SimpleNamespace(key_manager=manager, keys=keys, accounting=SimpleNamespace(limiter=limiter))
    for routes in (key_routes, tenant_routes, limit_routes):
        routes.add(app, cast(Service, service))
    exception_handlers.add(app)
    return TestClient(RequestIdMiddleware(ApiKeyMiddleware(app, NoKeys())))


async def run_requests(limiter: Limiter, store: KeyStore, key: str) -> None:
    """One has ended, one is open."""
    identity = load_keys(store, Clock()).find(key)
    await limiter.settle(await limiter.reserve(identity, "r", Charge(100, 20)), Charge(30, 10))
    await limiter.reserve(identity, "r", Charge(200, 40))


def test_the_live_use_of_tenants_and_active_keys(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        limiter = LocalLimiter()
        used, _ = store.create_key("acme", {"name": "app", **LIMITS}, BOSS)
        idle, _ = store.create_key("acme", {}, BOSS)
        other, _ = store.create_key("other", {"concurrent_requests": 3}, BOSS)
        store.revoke_key(store.create_key("acme", {}, BOSS)[0].id, BOSS)
        http = client(store, limiter)
        asyncio.run(run_requests(limiter, store, used.id))

        everything = http.get("/admin/limits").json()["data"]
        assert {(one["owner"], one["tenant"], one["key"]) for one in everything} == {
            ("tenant", "acme", None), ("tenant", "other", None),
            ("key", "acme", used.id), ("key", "acme", idle.id), ("key", "other", other.id),
        }  # fmt: skip
        assert {one["tenant"] for one in http.get("/admin/limits?tenant=acme").json()["data"]} == {"acme"}
        (shown,) = http.get(f"/admin/limits?key={used.id}").json()["data"]
        assert shown == {
            "object": "limits", "id": f"acme/{used.id}", "owner": "key", "tenant": "acme", "key": used.id,
            "name": "app",
            "requests_per_minute": {"limit": 10, "settled": 2, "reserved": 0, "remaining": 8},
            "tokens_per_minute": {"limit": 1000, "settled": 30, "reserved": 200, "remaining": 770},
            "concurrent_requests": {"limit": None, "settled": 0, "reserved": 1, "remaining": None},
            "usd_per_day": {"limit": 1.5, "settled": 0.00001, "reserved": 0.00004, "remaining": 1.49995},
            "usd_per_month": {"limit": None, "settled": 0.00001, "reserved": 0.00004, "remaining": None},
        }  # fmt: skip
        (tenant,) = [one for one in everything if (one["tenant"], one["key"]) == ("acme", None)]
        assert tenant["tokens_per_minute"] == {"limit": None, "settled": 30, "reserved": 200, "remaining": None}
        assert http.get(f"/admin/limits?key={used.id}&tenant=other").json()["data"] == []
        assert http.get("/admin/limits?key=unknown").status_code == 404
        assert http.get("/admin/limits?tenant=unknown").status_code == 404
        assert http.get("/admin/limits?model=m").status_code == 400


def all_pages(http: TestClient, path: str, limit: int) -> tuple[list[dict[str, Any]], int]:
    """The entries of a list, following its cursors, and the number of pages."""
    entries: list[dict[str, Any]] = []
    pages, separator = 1, "&" if "?" in path else "?"
    page = http.get(f"{path}{separator}limit={limit}").json()
    while True:
        entries += page["data"]
        assert len(page["data"]) <= limit
        if not page["has_more"]:
            return entries, pages
        pages += 1
        page = http.get(f"{path}{separator}limit={limit}&after={page['last_id']}").json()


def test_many_keys_and_tenants_come_page_by_page(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        many = {f"tenant-{number:02}": 0 if number % 3 == 0 else 20 for number in range(60)} | {"tenant-20": 2500}
        ids = fill_store(store, many)
        http = client(store, LocalLimiter())
        keys, pages = all_pages(http, "/admin/keys", 1000)
        assert [(one["tenant"], one["id"]) for one in keys] == ids
        assert pages == -(-len(ids) // 1000)
        tenants, _ = all_pages(http, "/admin/tenants", 17)
        assert [one["name"] for one in tenants] == sorted(many)

        limits, _ = all_pages(http, "/admin/limits", 999)
        expected = [
            one for name in sorted(many) for one in (name, *(f"{name}/{key}" for tenant, key in ids if tenant == name))
        ]
        assert [one["id"] for one in limits] == expected
        one_by_one, _ = all_pages(http, "/admin/limits?tenant=tenant-01", 1)
        assert [one["id"] for one in one_by_one] == [one for one in expected if one.split("/")[0] == "tenant-01"]

        first = http.get("/admin/keys?limit=2").json()
        assert (first["first_id"], first["last_id"]) == (ids[0][1], ids[1][1])
        assert len(http.get("/admin/keys").json()["data"]) == 100
        for path in ("/admin/keys", "/admin/limits", "/admin/tenants"):
            for query in ("limit=0", "limit=1001", "limit=x", "after=/nobody", "search=%00", "before=1"):
                answer = http.get(f"{path}?{query}")
                assert (answer.status_code, answer.json()["error"]["param"]) in (
                    (400, query.split("=")[0]), (400, "tenant")
                ), (path, query)  # fmt: skip


def test_keys_are_found_by_text_and_state(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        clock = Clock()
        app, _ = store.create_key("acme", {"name": "Front_end 100%"}, BOSS)
        old, _ = store.create_key("beta", {"name": "batch", "expires_at": int(clock.now + 1)}, BOSS)
        gone, _ = store.create_key("gamma", {"name": "frontal"}, BOSS)
        store.revoke_key(gone.id, BOSS)
        store.create_tenant("empty", {}, BOSS)
        http = client(store, LocalLimiter())

        def found(path: str) -> list[str]:
            return [one.get("id", one.get("name")) for one in http.get(path).json()["data"]]

        assert found("/admin/keys?search=front") == [app.id, gone.id]
        assert found("/admin/keys?search=front&state=active") == [app.id]
        assert found("/admin/keys?search=front&state=revoked") == [gone.id]
        assert found("/admin/keys?search=100%25") == found("/admin/keys?search=t_e") == [app.id]  # no wildcards
        assert found("/admin/keys?search=BET") == found(f"/admin/keys?search={old.id}") == [old.id]
        assert found("/admin/tenants?search=front") == ["acme", "gamma"]
        assert found("/admin/tenants?search=empt") == ["empty"]
        assert found("/admin/limits?search=front") == ["acme", f"acme/{app.id}", "gamma"]
        assert found("/admin/keys?state=expired") == []
        assert http.get("/admin/keys?state=lost").json()["error"]["param"] == "state"
    clock.now += 2
    with open_store(tmp_path, clock) as store:
        assert [one.id for one in store.keys(Wanted(state="expired"))] == [old.id]


class AwayLimiter(LocalLimiter):
    async def use(self, accounts: Any) -> Any:
        raise LimitsUnavailable("away")


def test_without_the_store_of_limits_it_is_unavailable(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.create_key("acme", {}, BOSS)
        assert client(store, AwayLimiter()).get("/admin/limits").status_code == 503


def test_a_server_without_keys_has_no_limits() -> None:
    assert client(None, None).get("/admin/limits").status_code == 404
