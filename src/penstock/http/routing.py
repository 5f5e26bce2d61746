"""The application and its routes: Starlette's, each with its part of /openapi.json.

Handlers are coroutine functions that take the request, path parameters by their names, both or none. Bodies are parsed
and written by `http.api`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

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
        responses: Responses | None = None,
        openapi_extra: dict[str, Any] | None = None,
        include_in_schema: bool = True,
    ) -> None:
        super().__init__(path, _endpoint(handler), methods=methods, include_in_schema=include_in_schema)
        self.handler = handler
        self.documented_method = methods[0].lower()
        self.responses = responses or {}
        self.openapi_extra = openapi_extra or {}


class App(Starlette):
    """`docs` are the keyword arguments of ApiRoute; `http.openapi.route_docs` makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.router.redirect_slashes = False

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
        self.router.routes.append(ApiRoute(path, handler, methods=methods, **docs))


def _endpoint(handler: Callable[..., Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """The handler as Starlette calls it: with the request alone."""
    names = [*inspect.signature(handler).parameters]
    if names == ["request"]:
        return handler

    async def endpoint(request: Request) -> Response:
        return await handler(**{name: request if name == "request" else request.path_params[name] for name in names})

    return endpoint
