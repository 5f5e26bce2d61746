"""The HTTP application: composes routes, error formats and middleware."""

from __future__ import annotations

from starlette.routing import Route
from starlette.types import ASGIApp

import penstock
from penstock.http import exception_handlers, openapi_bodies, operations, ui
from penstock.http.api import capacity_routes, model_routes, tokenizer_routes, usage_routes
from penstock.http.api.admin import adapter_routes, audit_routes, key_routes, limit_routes, tenant_routes
from penstock.http.api.admin import model_routes as admin_model_routes
from penstock.http.api.anthropic import routes as anthropic_routes
from penstock.http.api.ollama import routes as ollama_routes
from penstock.http.api.openai import batch_routes, file_routes, moderations, rerank, stored_routes
from penstock.http.api.openai import routes as openai_routes
from penstock.http.api.responses import routes as responses_routes
from penstock.http.debug import routes as debug_routes
from penstock.http.error_formats import ERROR_FORMATS
from penstock.http.middleware.admission import AdmissionThrottle
from penstock.http.middleware.auth import KEYLESS_PATHS, ApiKeyMiddleware
from penstock.http.middleware.body_limit import BodyLimitMiddleware
from penstock.http.middleware.cors import cors
from penstock.http.middleware.head import HeadMiddleware
from penstock.http.middleware.hosts import HostMiddleware
from penstock.http.middleware.request_id import RequestIdMiddleware
from penstock.http.middleware.version_prefix import VersionPrefixMiddleware
from penstock.http.openapi import page
from penstock.http.routing import App
from penstock.http.service import Service
from penstock.observe.observer import Observer
from penstock.settings import Settings, parse_bytes
from penstock.store.adapter_spec import MAX_CONFIG_BYTES

FORM_BYTES = 1 << 16  # of an upload, beside its file


def build(service: Service, settings: Settings, observer: Observer | None = None) -> ASGIApp:
    app = App()
    _add_routes(app, service, settings, observer)
    exception_handlers.add(app)
    page.add(
        app,
        openapi_bodies.components,
        version=penstock.__version__,
        model=service.models.default.card.name,
        has_keys=settings.needs_key,
    )
    return _add_middleware(app, service, settings)


def build_frontend(service: Service, settings: Settings) -> ASGIApp:
    """The application of a further frontend process: `frontends.gate` says which of its routes are used. Files and
    batches are not among them, since a data folder belongs to one process."""
    app = App()
    openai_routes.add_generation(app, service, service.completions)
    responses_routes.add(app, service, service.responses)
    anthropic_routes.add(app, service)
    openai_routes.add_embeddings(app, service)
    rerank.add(app, service)
    moderations.add(app, service)
    tokenizer_routes.add(app, service)
    ollama_routes.add(app, service)
    exception_handlers.add(app)
    return _add_middleware(app, service, settings)


def _add_routes(app: App, service: Service, settings: Settings, observer: Observer | None) -> None:
    """In the order of /openapi.json and /docs."""
    openai_routes.add_generation(app, service, service.completions)
    stored_routes.add(app, service.completions)
    responses_routes.add(app, service, service.responses)
    anthropic_routes.add(app, service)
    openai_routes.add_embeddings(app, service)
    rerank.add(app, service)
    moderations.add(app, service)
    model_routes.add(app, service)
    batch_routes.add(app, service, settings)
    tokenizer_routes.add(app, service)
    admin_model_routes.add(app, service, settings)
    adapter_routes.add(app, service, settings)
    key_routes.add(app, service)
    tenant_routes.add(app, service)
    limit_routes.add(app, service)
    audit_routes.add(app, service)
    usage_routes.add(app, service)
    ollama_routes.add(app, service)
    capacity_routes.add(app, service, observer)
    operations.add(app, service)
    debug_routes.add(app, service, observer, settings)
    ui.add(app, root_for_clients=ollama_routes.running, others=settings.serve.mcp_servers)


def _add_middleware(app: App, service: Service, settings: Settings) -> ASGIApp:
    """Inside out; `http.middleware` lists them from the outside."""
    serve = settings.serve
    wrapped: ASGIApp = AdmissionThrottle(app)
    # A form has a few fields beside the file.
    streamed = {
        file_routes.PATH: parse_bytes(serve.max_file, "max_file") + FORM_BYTES,
        adapter_routes.UPLOAD_PATH: parse_bytes(serve.max_adapter, "max_adapter") + MAX_CONFIG_BYTES + FORM_BYTES,
    }
    wrapped = BodyLimitMiddleware(wrapped, parse_bytes(serve.max_body, "max_body"), streamed=streamed)
    wrapped = ApiKeyMiddleware(wrapped, service.keys)
    wrapped = HeadMiddleware(wrapped)
    wrapped = cors(wrapped, serve.origins)
    wrapped = VersionPrefixMiddleware(wrapped, [route.path for route in app.routes if isinstance(route, Route)])
    wrapped = HostMiddleware(wrapped, settings, any_host_paths=KEYLESS_PATHS)
    traced = settings.observe.otel_endpoint is not None
    return RequestIdMiddleware(wrapped, start_traces=traced, error_formats=ERROR_FORMATS)
