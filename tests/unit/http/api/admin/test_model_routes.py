from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from starlette.testclient import TestClient

from penstock.deployment.autoscaler import Autoscaler
from penstock.deployment.protocol import ModelCard, ServedModel, State
from penstock.deployment.registry import ModelRegistry
from penstock.errors import InvalidSetting
from penstock.gateway.gateway import Gateway
from penstock.gateway.keys.configured import ConfiguredKeys
from penstock.gateway.keys.directory import KeyDirectory, NoKeys
from penstock.gateway.router import Router
from penstock.http import exception_handlers
from penstock.http.api.admin import model_routes
from penstock.http.middleware.auth import ApiKeyMiddleware
from penstock.http.middleware.request_id import RequestIdMiddleware
from penstock.http.routing import App
from penstock.http.service import Service
from penstock.settings import load


def answer(directory: KeyDirectory, key: str = "") -> int:
    """The status of GET /admin/models."""
    model = cast(ServedModel, SimpleNamespace(card=ModelCard(name="m"), state=State.READY, deployments=()))
    app = App()
    registry = ModelRegistry([model])
    gateway = Gateway(Router("prefix", secret=b""), registry.find)
    parts = {"models": registry, "manager": object(), "gateway": gateway, "autoscaler": Autoscaler(list)}
    service = cast(Service, SimpleNamespace(**parts))
    model_routes.add(app, service, load({}, environ={}))
    exception_handlers.add(app)
    guarded = RequestIdMiddleware(ApiKeyMiddleware(app, directory))
    return TestClient(guarded).get("/admin/models", headers={"authorization": f"Bearer {key}"}).status_code


def test_managing_models_needs_an_admin_key_where_there_are_keys() -> None:
    keys = ConfiguredKeys(["user", "boss"], ["boss"])
    assert answer(keys, "boss") == 200
    assert answer(keys, "user") == 403
    assert answer(ConfiguredKeys(["user"]), "user") == 403
    assert answer(NoKeys()) == 200


def test_an_admin_key_goes_with_api_keys() -> None:
    assert load({"api_key": "a", "admin_key": "b"}, environ={}).serve.keys == ("a", "b")
    for wrong in ({"admin_key": "b"}, {"api_key": "a", "admin_key": ""}):
        with pytest.raises(InvalidSetting, match="admin_key"):
            load(wrong, environ={})
