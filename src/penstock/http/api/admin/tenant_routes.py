"""Routes of tenants: the limits of all keys of a tenant together, and its weight."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.gateway.keys.identity import Scope
from penstock.gateway.keys.records import TenantFields, Wanted
from penstock.http.api.admin.actions import actor_of, key_manager
from penstock.http.api.admin.bodies import NewTenant, TenantList, TenantObject, tenant_object
from penstock.http.api.admin.paging import LIMIT, cut_page
from penstock.http.json_response import json_response
from penstock.http.openapi.route_docs import route_docs
from penstock.http.parse.body import read_object
from penstock.http.parse.query import Parameter, read_query
from penstock.http.routing import App
from penstock.http.service import Service

NOT_FOUND = "No such tenant, or a server without a database of keys."
LIST = (
    Parameter(name="search", description="Part of the name, or of the id or name of one of the tenant's keys."),
    Parameter(name="after", description="The name of the tenant behind which the page begins."),
    LIMIT,
)


def add(app: App, service: Service) -> None:
    admin = app.requiring(Scope.ADMIN)

    @admin.post("/admin/tenants", **route_docs(NewTenant, TenantObject, not_found=NOT_FOUND))
    async def create_tenant(request: Request) -> Response:
        """Create a tenant."""
        values, manager = await read_object(request), key_manager(service)
        name = values.pop("name", None)
        record = await manager.change(manager.store.create_tenant, name, values, actor_of(request))
        return json_response(msgspec.json.encode(tenant_object(record)))

    @admin.get("/admin/tenants", **route_docs(None, TenantList, not_found=NOT_FOUND, may_reject=True, parameters=LIST))
    async def list_tenants(request: Request) -> Response:
        """Tenants, by name."""
        asked, manager = read_query(request, LIST), key_manager(service)
        limit, after = asked.pop("limit"), asked.pop("after")
        records = await manager.read(manager.store.tenants, Wanted(**asked), after=after, limit=limit + 1)
        shown, page = cut_page(records, limit, lambda record: record.name)
        data = [tenant_object(record) for record in shown]
        return json_response(msgspec.json.encode(TenantList(data=data, **page)))

    @admin.get("/admin/tenants/{name}", **route_docs(None, TenantObject, not_found=NOT_FOUND))
    async def retrieve_tenant(name: str) -> Response:
        """One tenant."""
        manager = key_manager(service)
        return json_response(msgspec.json.encode(tenant_object(await manager.read(manager.store.tenant, name))))

    @admin.post("/admin/tenants/{name}", **route_docs(TenantFields, TenantObject, not_found=NOT_FOUND))
    async def update_tenant(name: str, request: Request) -> Response:
        """Change a tenant. Fields that are left out stay; null removes a limit."""
        values, manager = await read_object(request), key_manager(service)
        record = await manager.change(manager.store.update_tenant, name, values, actor_of(request))
        return json_response(msgspec.json.encode(tenant_object(record)))
