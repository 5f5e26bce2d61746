"""Who acts, and the entry of an action in the audit log."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request

from penstock.errors import NotFound, PenstockError
from penstock.gateway.keys.audit import CANCELLED, DONE, Actor, log_action, printable
from penstock.gateway.keys.directory import NoKeys
from penstock.gateway.keys.manager import KeyManager
from penstock.http.middleware.tenants import identity_of
from penstock.http.service import Service


def actor_of(request: Request) -> Actor:
    key = identity_of(request.scope).key
    return Actor(f"key:{key}" if key else "anonymous", request.scope["state"]["request_id"])


def key_manager(service: Service) -> KeyManager:
    """Raises NotFound on a server that has no database or does not require keys: there, an unauthenticated client could
    create keys that become valid once the server requires them."""
    if service.key_manager is None or isinstance(service.keys, NoKeys):
        raise NotFound("this server has no database of keys: start it with --keys")
    return service.key_manager


@contextlib.asynccontextmanager
async def audited(
    service: Service, request: Request, action: str, target: str, details: dict[str, Any] | None = None
) -> AsyncIterator[None]:
    """Around an action outside the database. If its entry cannot be written, it does not take place. Without a
    database, only the log has it."""
    actor, manager, entry = actor_of(request), service.key_manager, 0
    if manager is not None:
        entry = await manager.read(manager.store.audit.begin, actor, action, target, details or {})
    outcome = PenstockError.code
    try:
        yield
        outcome = DONE
    except PenstockError as error:
        outcome = error.code
        raise
    except asyncio.CancelledError:
        outcome = CANCELLED
        raise
    finally:
        log_action(actor, action, printable(target), outcome)
        if manager is not None:
            await manager.read(manager.store.audit.end, entry, outcome)
