"""Who acts, and the entry of an action in the audit log."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request

from penstock.errors import NotFound, PenstockError
from penstock.gateway.keys.audit import DONE, Actor, log_action, printable
from penstock.gateway.keys.manager import KeyManager
from penstock.http.middleware.tenants import identity_of
from penstock.http.service import Service


def actor_of(request: Request) -> Actor:
    key = identity_of(request.scope).key
    return Actor(f"key:{key}" if key else "anonymous", request.scope["state"]["request_id"])


def key_manager(service: Service) -> KeyManager:
    """Raises NotFound on a server without a database."""
    if service.key_manager is None:
        raise NotFound("this server has no database of keys: start it with --keys")
    return service.key_manager


@contextlib.asynccontextmanager
async def audited(
    service: Service, request: Request, action: str, target: str, details: dict[str, Any] | None = None
) -> AsyncIterator[None]:
    """Around an action that does not change the database. Without a database, only the log has it."""
    actor = actor_of(request)
    if service.key_manager is not None:
        async with service.key_manager.audited(actor, action, target, details or {}):
            yield
        return
    outcome = PenstockError.code
    try:
        yield
        outcome = DONE
    except PenstockError as error:
        outcome = error.code
        raise
    finally:
        log_action(actor, action, printable(target), outcome)
