from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from starlette.requests import Request

from helpers.key_stores import open_store
from penstock.errors import InvalidRequest, NotFound, PenstockError
from penstock.gateway.keys.configured import ConfiguredKeys
from penstock.gateway.keys.directory import NoKeys
from penstock.gateway.keys.identity import Identity
from penstock.gateway.keys.manager import KeyManager
from penstock.http.api.admin.actions import audited, key_manager
from penstock.http.service import Service

OUTCOMES: dict[str, type[BaseException] | None] = {
    "ok": None,
    "invalid_request": InvalidRequest,
    "cancelled": asyncio.CancelledError,
    PenstockError.code: RuntimeError,
}


async def act(manager: KeyManager | None) -> None:
    """One action per outcome."""
    service = cast(Service, SimpleNamespace(key_manager=manager))
    state = {"request_id": "r1", "identity": Identity(key="k1")}
    request = Request({"type": "http", "headers": [], "state": state})
    for error in OUTCOMES.values():
        with contextlib.nullcontext() if error is None else pytest.raises(error):
            async with audited(service, request, "model.load", "m", {"a": 1}):
                if manager is not None:
                    assert manager.store.audit.entries(limit=1)[0].outcome == "started"
                if error is not None:
                    raise error("no")
    if manager is not None:
        await manager.close()


def test_an_action_is_in_the_audit_log_with_its_outcome(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_store(tmp_path) as store, caplog.at_level(logging.INFO, "penstock.audit"):
        asyncio.run(act(KeyManager(store)))
        entries = list(reversed(store.audit.entries(limit=9)))
    assert [entry.outcome for entry in entries] == list(OUTCOMES)
    assert {(entry.actor, entry.request_id, entry.target) for entry in entries} == {("key:k1", "r1", "m")}
    ends = [message for message in caplog.messages if not message.endswith("started")]
    assert ends == [f"model.load m by key:k1: {outcome}" for outcome in OUTCOMES]


def test_keys_are_not_administrated_by_clients_without_a_key(tmp_path: Path) -> None:
    """Of a server with a ledger and without keys: theirs would be valid once it has some."""
    with open_store(tmp_path) as store:
        manager = KeyManager(store)
        open_server = SimpleNamespace(key_manager=manager, keys=NoKeys())
        guarded_server = SimpleNamespace(key_manager=manager, keys=ConfiguredKeys([], ["boss"]))
        with pytest.raises(NotFound, match="start it with --keys"):
            key_manager(cast(Service, open_server))
        assert key_manager(cast(Service, guarded_server)) is manager


def test_without_a_database_the_log_has_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "penstock.audit"):
        asyncio.run(act(None))
    assert caplog.messages == [f"model.load m by key:k1: {outcome}" for outcome in OUTCOMES]
