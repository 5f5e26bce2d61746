"""The application and its routes: Starlette's, each with its part of /openapi.json.

Handlers are coroutine functions that take the request, path parameters by their names, both or none. Bodies are parsed
and written by `http.api`. Every route is added with the scopes of which an API key needs one, or as `public`:

    app.requiring(Scope.INFERENCE).post("/v1/chat/completions", ...)
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.gateway.keys.identity import Identity, Scope

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Response]])
Responses = dict[int | str, Any]  # OpenAPI's response objects, by status


class ApiRoute(Route):
    """A route with its response objects, and further fields of its OpenAPI operation."""

    def __init__(
        self,
        path: str,
        handler: Callable[..., Awaitable[Response]],
        *,
        methods: Sequence[str],
        scopes: frozenset[Scope] | None,
        responses: Responses | None = None,
        openapi_extra: dict[str, Any] | None = None,
        include_in_schema: bool = True,
    ) -> None:
        super().__init__(path, _endpoint(handler, scopes), methods=methods, include_in_schema=include_in_schema)
        self.handler = handler
        self.scopes = scopes  # of which an API key needs one; None: no key is needed
        self.documented_method = methods[0].lower()
        self.responses = responses or {}
        self.openapi_extra = openapi_extra or {}


class App(Starlette):
    """The application. Its routes are added through `requiring` and `public`."""

    def __init__(self) -> None:
        super().__init__()
        self.router.redirect_slashes = False
        self.public = Routes(self, None)  # need no key

    def requiring(self, *scopes: Scope) -> Routes:
        """An API key needs one of these scopes."""
        return Routes(self, frozenset(scopes))


class Routes:
    """Adds routes that need the same scopes. `docs` are the keyword arguments of ApiRoute, as `http.openapi.route_docs`
    makes them."""

    def __init__(self, app: App, scopes: frozenset[Scope] | None) -> None:
        self.app = app
        self.scopes = scopes

    def get(self, path: str, **docs: Any) -> Callable[[Handler], Handler]:
        return self.api_route(path, methods=["GET"], **docs)

    def post(self, path: str, **docs: Any) -> Callable[[Handler], Handler]:
        return self.api_route(path, methods=["POST"], **docs)

    def delete(self, path: str, **docs: Any) -> Callable[[Handler], Handler]:
        return self.api_route(path, methods=["DELETE"], **docs)

    def api_route(self, path: str, *, methods: Sequence[str], **docs: Any) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            self.add_api_route(path, handler, methods=methods, **docs)
            return handler

        return add

    def add_api_route(
        self, path: str, handler: Callable[..., Awaitable[Response]], *, methods: Sequence[str], **docs: Any
    ) -> None:
        self.app.router.routes.append(ApiRoute(path, handler, methods=methods, scopes=self.scopes, **docs))


def _endpoint(
    handler: Callable[..., Awaitable[Response]], scopes: frozenset[Scope] | None
) -> Callable[[Request], Awaitable[Response]]:
    """The handler as Starlette calls it: with the request alone. Raises Forbidden if the key lacks the scopes."""
    names = [*inspect.signature(handler).parameters]

    async def endpoint(request: Request) -> Response:
        if scopes is not None:
            identity: Identity = request.scope["state"]["identity"]
            identity.require(scopes)
        return await handler(**{name: request if name == "request" else request.path_params[name] for name in names})

    return endpoint
