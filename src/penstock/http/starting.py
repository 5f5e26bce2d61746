"""What a server answers while its models are downloaded and loaded: /health, /ready with the phase, and the web
interface, which shows it. Everything else is a 503 with Retry-After: clients that retry reach the loaded model."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import ASGIApp

from penstock.errors import ModelLoading
from penstock.http import exception_handlers, ui
from penstock.http.error_formats import ERROR_FORMATS
from penstock.http.json_response import json_response
from penstock.http.middleware.auth import KEYLESS_PATHS
from penstock.http.middleware.head import HeadMiddleware
from penstock.http.middleware.hosts import HostMiddleware
from penstock.http.middleware.request_id import RequestIdMiddleware
from penstock.http.routing import App
from penstock.http.start_status import StartStatus
from penstock.settings import Settings

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def build(status: StartStatus, settings: Settings) -> ASGIApp:
    app = App()

    @app.public.get("/health")
    async def health() -> Response:
        return json_response(status.with_status("ok"))

    @app.public.get("/ready")
    async def ready() -> Response:
        response = json_response(status.with_status("starting"), ModelLoading.status)
        response.headers["retry-after"] = "1"
        return response

    def raise_loading() -> Response:
        raise ModelLoading(f"the server is starting ({status.phase}); try again in a moment, or wait for /ready")

    ui.add(app, root_for_clients=raise_loading, others=settings.serve.mcp_servers)

    @app.public.api_route("/{path:path}", methods=METHODS)
    async def other() -> Response:
        return raise_loading()

    exception_handlers.add(app)
    hosted = HostMiddleware(HeadMiddleware(app), settings, any_host_paths=KEYLESS_PATHS)
    return RequestIdMiddleware(hosted, error_formats=ERROR_FORMATS)
