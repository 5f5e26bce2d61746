"""Every route of the application, with the scopes of which an API key needs one. A new route must be added here, by
somebody who has thought about who may use it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from starlette.testclient import TestClient

from penstock.deployment.protocol import ModelCard, ServedModel, State
from penstock.deployment.registry import ModelRegistry
from penstock.flow.identity import UNNAMED
from penstock.gateway.keys.configured import ConfiguredKeys
from penstock.gateway.keys.directory import KeyDirectory, NoKeys
from penstock.gateway.keys.identity import Identity, Scope
from penstock.http import app as app_module
from penstock.http.routing import ApiRoute, App
from penstock.http.service import Service
from penstock.observe.metrics import PrometheusMetrics
from penstock.settings import load

PUBLIC = "GET / · GET /health · GET /ready · GET /ui · GET /ui/{path:path}"
ANY_KEY = """
GET /api/blobs/{digest} · POST /api/blobs/{digest} · POST /api/copy · POST /api/create · DELETE /api/delete
GET /api/ps · POST /api/push · POST /api/show · GET /api/tags · GET /api/version
GET /docs · GET /is_sleeping · GET /openapi.json · GET /v1/models · GET /v1/models/{model_id:path} · GET /version
"""
INFERENCE = """
POST /api/chat · POST /api/embed · POST /api/embeddings · POST /api/generate
POST /detokenize · POST /observe/lab · POST /plan/budget · POST /tokenize · GET /tokenizer_info
POST /v1/batches · GET /v1/batches · GET /v1/batches/{batch_id} · POST /v1/batches/{batch_id}/cancel
POST /v1/chat/completions · GET /v1/chat/completions · GET /v1/chat/completions/{completion_id}
POST /v1/chat/completions/{completion_id} · DELETE /v1/chat/completions/{completion_id}
GET /v1/chat/completions/{completion_id}/messages · POST /v1/completions · POST /v1/embeddings
POST /v1/moderations · POST /v1/rerank · POST /v2/rerank
POST /v1/files · GET /v1/files · GET /v1/files/{file_id} · DELETE /v1/files/{file_id} · GET /v1/files/{file_id}/content
POST /v1/messages · POST /v1/messages/count_tokens · POST /v1/responses · POST /v1/responses/input_tokens
GET /v1/responses/{response_id} · DELETE /v1/responses/{response_id} · POST /v1/responses/{response_id}/cancel
GET /v1/responses/{response_id}/input_items
"""
OBSERVE = """
GET /metrics · GET /observe/cache · POST /observe/cache/explain · GET /observe/cache/tree · GET /observe/check
GET /observe/facts · GET /observe/history · GET /observe/live · POST /observe/model · GET /observe/pipeline
GET /observe/replay · GET /observe/scaling · GET /observe/speculation
GET /observe/requests · GET /observe/requests/{name} · GET /observe/steps · POST /plan · GET /plan/presets · GET /slo
"""
ADMIN = """
GET /admin/audit · POST /admin/keys · GET /admin/keys · GET /admin/keys/{id} · POST /admin/keys/{id}
DELETE /admin/keys/{id} · POST /admin/keys/{id}/rotate · GET /admin/limits · POST /admin/load · POST /admin/models
GET /admin/models · DELETE /admin/models/{name:path} · POST /admin/tenants · GET /admin/tenants
GET /admin/tenants/{name} · POST /admin/tenants/{name} · POST /admin/unload · POST /api/pull · POST /sleep
POST /wake_up
GET /observe/tenants
POST /admin/adapters · POST /admin/adapters/upload · DELETE /admin/adapters/{name:path}
POST /v1/load_lora_adapter · POST /v1/unload_lora_adapter
"""
OBSERVE_OR_ADMIN = "GET /usage · GET /admin/adapters"
EXPECTED = {
    line.strip(): scopes
    for text, scopes in (
        (PUBLIC, None),
        (ANY_KEY, frozenset(Scope)),
        (INFERENCE, frozenset({Scope.INFERENCE})),
        (OBSERVE, frozenset({Scope.OBSERVE})),
        (ADMIN, frozenset({Scope.ADMIN})),
        (OBSERVE_OR_ADMIN, frozenset({Scope.OBSERVE, Scope.ADMIN})),
    )
    for part in text.strip().splitlines()
    for line in part.split("·")
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, App]:
    return build(tmp_path_factory.mktemp("data"), _Keys(), api_key="user")


def build(data_dir: Path, keys: KeyDirectory, **settings: Any) -> tuple[Any, App]:
    """The application with its middleware, and without."""
    made: list[App] = []

    class Recorded(App):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    loaded = load({"data_dir": str(data_dir), **settings}, environ={})
    model = cast(ServedModel, SimpleNamespace(card=ModelCard(name="m"), state=State.READY, deployments=()))
    service = Service(
        ModelRegistry([model]),
        MagicMock(),
        PrometheusMetrics(UNNAMED),
        stall_s=1.0,
        keys=keys,
    )
    service.manager = service.adapters = MagicMock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app_module, "App", Recorded)
        return app_module.build(service, loaded, MagicMock()), made[0]


class _Keys(ConfiguredKeys):
    """Each key is the list of its scopes: `inference,observe`; `none` has none."""

    def __init__(self) -> None:
        super().__init__([])

    def identify(self, key: bytes) -> Identity | None:
        names = key.decode().split(",") if key else []
        scopes = frozenset(Scope(name) for name in names if name != "none")
        return Identity(tenant="t", key="k", scopes=scopes) if names else None


def routes_of(app: App) -> dict[str, frozenset[Scope] | None]:
    routes = [route for route in app.routes if isinstance(route, ApiRoute)]
    assert len(routes) == len(app.routes), "a route that is not an ApiRoute has no scopes"
    return {
        f"{method} {route.path}": route.scopes for route in routes for method in route.methods or () if method != "HEAD"
    }


def test_every_route_has_the_scopes_that_it_should_have(built: tuple[Any, App]) -> None:
    found = routes_of(built[1])
    assert found.keys() - EXPECTED.keys() == set(), "routes without an entry in this file"
    assert EXPECTED.keys() - found.keys() == set(), "entries without a route"
    assert found == EXPECTED


@pytest.mark.parametrize("route", EXPECTED)
def test_a_key_without_the_scope_gets_no_further(built: tuple[Any, App], route: str) -> None:
    """Nor a request without a key. The route itself is not run: what it needs is not there."""
    method, path = route.split(" ")
    for part in ("{path:path}", "{model_id:path}", "{name:path}", "{name}", "{id}", "{digest}", "{file_id}"):
        path = path.replace(part, "x")
    for part in ("{batch_id}", "{response_id}", "{completion_id}"):
        path = path.replace(part, "x")
    scopes = EXPECTED[route]
    client = TestClient(built[0], base_url="http://127.0.0.1")
    if scopes is None:
        return
    assert client.request(method, path).status_code == 401
    for scope in [None, *Scope]:
        if scope not in scopes:
            headers = {"authorization": f"Bearer {'none' if scope is None else scope.value}"}
            assert client.request(method, path, headers=headers).status_code == 403, scope


def test_public_routes_are_those_that_the_auth_middleware_lets_through(built: tuple[Any, App]) -> None:
    client = TestClient(built[0], base_url="http://127.0.0.1", follow_redirects=False)
    public = [route.split(" ")[1].replace("{path:path}", "x.js") for route in EXPECTED if EXPECTED[route] is None]
    assert all(client.get(path).status_code != 401 for path in public)
    assert client.get("/no/such/route").status_code == 401


# What these answer is the same for everybody, and has no effect.
NO_EFFECT = ("/api/blobs/{digest}", "/api/copy", "/api/create", "/api/push", "/v1/responses/{response_id}/cancel")


@pytest.mark.parametrize("content_type", [None, "text/plain", "multipart/form-data; boundary=x"])
def test_no_page_of_another_origin_has_an_effect_without_being_asked_for(
    tmp_path: Path, content_type: str | None
) -> None:
    """A browser sends such POST requests without a preflight. On a server without keys they must change nothing."""
    whole, app = build(tmp_path, NoKeys())
    client = TestClient(whole, base_url="http://127.0.0.1:8000", raise_server_exceptions=False)
    headers = {"origin": "https://evil.example"} | ({"content-type": content_type} if content_type else {})
    paths = [route.split(" ")[1] for route in routes_of(app) if route.startswith("POST ")]
    statuses = {
        path: client.post(re.sub(r"\{[^}]*\}", "x", path), headers=headers).status_code
        for path in paths
        if path not in NO_EFFECT
    }
    assert {path: status for path, status in statuses.items() if status not in (403, 415)} == {}
