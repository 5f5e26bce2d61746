"""The settings that everybody with the scope observe may read."""

from __future__ import annotations

import json

import msgspec
import pytest

from penstock.http.debug.server_routes import settings_without_secrets
from penstock.settings import Settings, load
from penstock.settings.models import ModelEntry
from penstock.settings.routes import RouteEntry
from penstock.settings.safety import SafetyEntry

SECRETS = {
    "api_key": "secret-1",
    "admin_key": "secret-2",
    "slo_webhook": "https://u:secret-3@example.com/",
    "otel_endpoint": "https://example.com/?key=secret-4",
    "database": "postgresql://penstock:secret-5@db.example/penstock",
    "redis": "redis://:secret-6@db.example/0",
    "keys": True,
    "ledger": True,
    "slo_ttft_p95": 1.0,
}


@pytest.fixture
def settings() -> Settings:
    return msgspec.structs.replace(
        load(SECRETS, environ={}),
        models=(ModelEntry(name="theirs", upstream="http://127.0.0.1:9/v1"),),
        routes=(RouteEntry(name="auto", models=("theirs",)),),
        safety=(SafetyEntry(name="r", hook="https://u:secret-7@example.com/", tenants=("acme",)),),
    )


def test_no_secrets_and_no_other_tenants(settings: Settings) -> None:
    shown = settings_without_secrets(settings, all_models=True)
    assert "secret-" not in json.dumps(shown)
    assert "acme" not in json.dumps(shown)
    assert shown["serve"]["port"] == 8000
    assert "theirs" in json.dumps(shown)


def test_a_key_of_certain_models_sees_no_others(settings: Settings) -> None:
    assert "theirs" not in json.dumps(settings_without_secrets(settings, all_models=False))
