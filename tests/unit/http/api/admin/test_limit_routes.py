from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from starlette.testclient import TestClient

from helpers.key_stores import BOSS, Clock, load_keys, open_store
from penstock.errors import LimitsUnavailable
from penstock.gateway.keys.directory import NoKeys
from penstock.gateway.keys.manager import KeyManager
from penstock.gateway.keys.store import KeyStore
from penstock.gateway.limits.limiter import Limiter
from penstock.gateway.limits.local_limiter import LocalLimiter
from penstock.gateway.limits.reservation import Charge
from penstock.http import exception_handlers
from penstock.http.api.admin import limit_routes
from penstock.http.middleware.auth import ApiKeyMiddleware
from penstock.http.middleware.request_id import RequestIdMiddleware
from penstock.http.routing import App
from penstock.http.service import Service

LIMITS = {"requests_per_minute": 10, "tokens_per_minute": 1000, "usd_per_day": 1.5}


def client(store: KeyStore | None, limiter: Limiter | None) -> TestClient:
    app = App()
    manager = None if store is None else KeyManager(store, load_keys(store, Clock()))
    keys = NoKeys() if manager is None else manager.keys
    service = SimpleNamespace(key_manager=manager, keys=keys, accounting=SimpleNamespace(limiter=limiter))
    limit_routes.add(app, cast(Service, service))
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
            "object": "limits", "owner": "key", "tenant": "acme", "key": used.id, "name": "app",
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


class AwayLimiter(LocalLimiter):
    async def use(self, accounts: Any) -> Any:
        raise LimitsUnavailable("away")


def test_without_the_store_of_limits_it_is_unavailable(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.create_key("acme", {}, BOSS)
        assert client(store, AwayLimiter()).get("/admin/limits").status_code == 503


def test_a_server_without_keys_has_no_limits() -> None:
    assert client(None, None).get("/admin/limits").status_code == 404
