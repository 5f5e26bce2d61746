"""How the tenants share the engines. For admins: a tenant learns nothing of the others."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from penstock.gateway.keys.identity import Scope
from penstock.http.debug import route_docs
from penstock.http.debug.queries import ask_engine, replica_of_query
from penstock.http.json_response import encode_response
from penstock.http.routing import App
from penstock.http.service import Service


def add(app: App, service: Service) -> None:
    @app.requiring(Scope.ADMIN).get("/observe/tenants", **route_docs.TENANTS.docs)
    async def tenants(request: Request) -> Response:
        """What each tenant has been served, and what it waits for."""
        replica = replica_of_query(service, request, route_docs.TENANTS.read_query(request))
        return encode_response(await ask_engine(replica, "tenants"))
