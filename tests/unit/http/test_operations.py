from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.testclient import TestClient

from penstock.gateway.accounting import Accounting
from penstock.gateway.limits.limiter import Limiter
from penstock.http import operations
from penstock.http.middleware.request_id import RequestIdMiddleware
from penstock.http.routing import App
from penstock.http.service import Service


@pytest.mark.parametrize(
    ("available", "fail_open", "status", "body"),
    [
        (None, False, 200, {"status": "ready"}),
        (True, False, 200, {"status": "ready", "limits": "available"}),
        (False, False, 503, {"status": "limits unavailable", "limits": "unavailable"}),
        (False, True, 200, {"status": "ready", "limits": "unavailable"}),
    ],
)
def test_ready_shows_the_store_of_limits(
    available: bool | None, fail_open: bool, status: int, body: dict[str, Any]
) -> None:
    limiter = None if available is None else cast(Limiter, SimpleNamespace(available=available))
    accounting = Accounting(limiter=limiter, fail_open=fail_open)
    service = SimpleNamespace(closing=False, ready=True, accounting=accounting, key_manager=None)
    app = App()
    operations.add(app, cast(Service, service))
    answer = TestClient(RequestIdMiddleware(app)).get("/ready")
    assert (answer.status_code, answer.json()) == (status, body)


@pytest.mark.parametrize("available", [True, False])
def test_ready_shows_the_database_of_keys_which_may_be_away(available: bool) -> None:
    manager = SimpleNamespace(available=available)
    service = SimpleNamespace(closing=False, ready=True, accounting=Accounting(), key_manager=manager)
    app = App()
    operations.add(app, cast(Service, service))
    answer = TestClient(RequestIdMiddleware(app)).get("/ready")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ready", "keys": "available" if available else "unavailable"}
