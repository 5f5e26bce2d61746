"""Routes of keys. The key itself is in the answer to its creation or rotation, and nowhere else."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import InvalidRequest
from penstock.gateway.keys.identity import Scope
from penstock.gateway.keys.records import KeyFields, Wanted
from penstock.http.api.admin.actions import actor_of, key_manager
from penstock.http.api.admin.bodies import KeyList, KeyObject, NewKey, Rotation, key_object
from penstock.http.api.admin.paging import AFTER, LIMIT, SEARCH, STATE, cut_page
from penstock.http.json_response import json_response
from penstock.http.openapi.route_docs import route_docs
from penstock.http.parse.body import read_object
from penstock.http.parse.query import Parameter, read_query
from penstock.http.routing import App
from penstock.http.service import Service

NOT_FOUND = "No such key, or a server without a database of keys."
LIST = (Parameter(name="tenant", description="Only the keys of this tenant."), SEARCH, STATE, AFTER, LIMIT)
MAX_GRACE_S = 30 * 24 * 3600.0


def add(app: App, service: Service) -> None:
    admin = app.requiring(Scope.ADMIN)

    @admin.post("/admin/keys", **route_docs(NewKey, KeyObject, not_found=NOT_FOUND))
    async def create_key(request: Request) -> Response:
        """Create a key for a tenant. The answer has the key itself, once."""
        values, manager = await read_object(request), key_manager(service)
        tenant = values.pop("tenant", None)
        record, key = await manager.change(manager.store.create_key, tenant, values, actor_of(request))
        return _response(key_object(record, key))

    @admin.get("/admin/keys", **route_docs(None, KeyList, not_found=NOT_FOUND, may_reject=True, parameters=LIST))
    async def list_keys(request: Request) -> Response:
        """Keys, without the keys themselves: by tenant, oldest first."""
        asked, manager = read_query(request, LIST), key_manager(service)
        limit, after = asked.pop("limit"), asked.pop("after")
        records = await manager.read(manager.store.keys, Wanted(**asked), after=after, limit=limit + 1)
        shown, page = cut_page(records, limit, lambda record: record.id)
        return _response(KeyList(data=[key_object(record) for record in shown], **page))

    @admin.get("/admin/keys/{id}", **route_docs(None, KeyObject, not_found=NOT_FOUND))
    async def retrieve_key(id: str) -> Response:
        """One key, without the key itself."""
        manager = key_manager(service)
        return _response(key_object(await manager.read(manager.store.key, id)))

    @admin.post("/admin/keys/{id}", **route_docs(KeyFields, KeyObject, not_found=NOT_FOUND))
    async def update_key(id: str, request: Request) -> Response:
        """Change a key. Fields that are left out stay; null removes a limit."""
        values, manager = await read_object(request), key_manager(service)
        return _response(key_object(await manager.change(manager.store.update_key, id, values, actor_of(request))))

    @admin.post("/admin/keys/{id}/rotate", **route_docs(Rotation, KeyObject, not_found=NOT_FOUND))
    async def rotate_key(id: str, request: Request) -> Response:
        """Replace the secret of a key. Its id, limits and usage stay; the key before is valid for `grace_s` seconds."""
        grace_s, manager = _grace(await read_object(request)), key_manager(service)
        record, key = await manager.change(manager.store.rotate_key, id, grace_s, actor_of(request))
        return _response(key_object(record, key))

    @admin.delete("/admin/keys/{id}", **route_docs(None, KeyObject, not_found=NOT_FOUND))
    async def revoke_key(id: str, request: Request) -> Response:
        """Revoke a key for good. All servers of the database act on it within a second."""
        manager = key_manager(service)
        return _response(key_object(await manager.change(manager.store.revoke_key, id, actor_of(request))))


def _grace(values: dict[str, Any]) -> float:
    for name in values:
        if name != "grace_s":
            raise InvalidRequest(f"{name[:64]} is not a known field; known: grace_s", param=name[:64])
    grace_s = values.get("grace_s", 0.0)
    number = isinstance(grace_s, int | float) and not isinstance(grace_s, bool)
    if not number or not math.isfinite(grace_s) or not 0 <= grace_s <= MAX_GRACE_S:
        raise InvalidRequest(f"grace_s must be a number from 0 to {MAX_GRACE_S:.0f}", param="grace_s")
    return float(grace_s)


def _response(body: msgspec.Struct) -> Response:
    return json_response(msgspec.json.encode(body))
