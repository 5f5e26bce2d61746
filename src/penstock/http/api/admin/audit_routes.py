"""The route of the audit log."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.gateway.keys.identity import Scope
from penstock.http.api.admin.actions import key_manager
from penstock.http.api.admin.bodies import AuditList, audit_list
from penstock.http.json_response import json_response
from penstock.http.openapi.route_docs import route_docs
from penstock.http.parse.query import Parameter, read_query
from penstock.http.routing import App
from penstock.http.service import Service

PARAMETERS = (
    Parameter(name="limit", description="Most entries of a page.", type="integer", bounds=(1, 1000), default=100),
    Parameter(name="before", description="Only entries with smaller ids.", type="integer", bounds=(1, 2**53)),
    Parameter(name="target", description="Only entries about this key, tenant or model."),
)


def add(app: App, service: Service) -> None:
    docs = route_docs(
        None, AuditList, not_found="A server without a database of keys.", may_reject=True, parameters=PARAMETERS
    )

    @app.requiring(Scope.ADMIN).get("/admin/audit", **docs)
    async def audit_log(request: Request) -> Response:
        """Who administrated what, newest first."""
        query, manager = read_query(request, PARAMETERS), key_manager(service)
        limit = query.pop("limit")
        entries = await manager.read(manager.store.audit.entries, limit=limit + 1, **query)
        return json_response(msgspec.json.encode(audit_list(entries, limit)))
