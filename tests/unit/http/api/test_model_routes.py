from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.deployment.protocol import ModelCard, ServedModel, State
from penstock.deployment.registry import ModelRegistry
from penstock.errors import Forbidden, InvalidSetting
from penstock.gateway.gateway import Gateway
from penstock.gateway.keys.configured import ConfiguredKeys
from penstock.gateway.keys.directory import NoKeys
from penstock.gateway.router import Router
from penstock.http.api import model_routes
from penstock.http.routing import ApiRoute, App
from penstock.http.service import Service
from penstock.settings import ServeSettings, load


def handler(settings: ServeSettings) -> Any:
    """Of GET /admin/models."""
    model = cast(ServedModel, SimpleNamespace(card=ModelCard(name="m"), state=State.READY, deployments=()))
    app = App()
    models = ModelRegistry([model])
    service = cast(Service, SimpleNamespace(models=models, manager=object(), gateway=Gateway(Router(), models.find)))
    model_routes.add(app, service, settings)
    return next(
        route.handler
        for route in app.routes
        if isinstance(route, ApiRoute) and route.path == "/admin/models" and "GET" in (route.methods or ())
    )


def asked_by(key: str | None) -> Any:
    keys = NoKeys() if key is None else ConfiguredKeys(["user", "boss"], ["boss"])
    return SimpleNamespace(scope={"state": {"identity": keys.identify((key or "").encode())}})


def test_managing_models_needs_an_admin_key_where_there_are_keys() -> None:
    settings = ServeSettings(api_key="user", admin_key="boss")
    assert asyncio.run(handler(settings)(asked_by("boss"))).status_code == 200
    with pytest.raises(Forbidden, match="admin_key"):
        asyncio.run(handler(settings)(asked_by("user")))
    with pytest.raises(Forbidden):
        asyncio.run(handler(ServeSettings(api_key="user"))(asked_by("user")))
    assert asyncio.run(handler(ServeSettings())(asked_by(None))).status_code == 200


def test_an_admin_key_goes_with_api_keys() -> None:
    assert load({"api_key": "a", "admin_key": "b"}, environ={}).serve.keys == ("a", "b")
    for wrong in ({"admin_key": "b"}, {"api_key": "a", "admin_key": ""}):
        with pytest.raises(InvalidSetting, match="admin_key"):
            load(wrong, environ={})
