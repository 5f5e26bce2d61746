"""From what routes raise to responses: errors, paths and methods that do not exist, clients that disconnect."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from penstock.errors import MethodNotAllowed, NotFound, PenstockError
from penstock.http.error_response import error_response
from penstock.http.request_events import CLIENT_DISCONNECTED
from penstock.http.routing import App


def add(app: App) -> None:
    async def on_error(request: Request, error: Exception) -> Response:
        return error_response(error, request.scope)

    async def on_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        method, path = request.method, request.url.path
        if error.status_code == 405:
            allowed = ", ".join(_allowed_methods(app, request.scope))
            not_allowed = MethodNotAllowed(f"{path} does not accept {method}, only {allowed}; see /docs")
            return error_response(not_allowed, request.scope, {"allow": allowed})
        not_found = NotFound(f"there is no route {method} {path}; /docs lists all routes")
        return error_response(not_found, request.scope, error.headers)

    async def on_disconnect(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_DISCONNECTED)  # for the access log only

    app.add_exception_handler(ClientDisconnect, on_disconnect)
    app.add_exception_handler(PenstockError, on_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(Exception, on_error)


def _allowed_methods(app: App, scope: Scope) -> list[str]:
    """All methods of the path; Starlette names those of the first route only. HEAD goes where GET does."""
    routes = [route for route in app.routes if isinstance(route, Route) and route.matches(scope)[0] is Match.PARTIAL]
    exact = [route for route in routes if route.path == scope["path"]]  # others take the last segment for a parameter
    methods = {method for route in exact or routes for method in route.methods or ()}
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))
