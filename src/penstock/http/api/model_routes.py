"""Routes for operators: models are added, loaded, unloaded and removed while the server runs.

With API keys, these need one of `admin_key`. Without, every client that reaches the server may use them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.deployment.local_model import LocalModel
from penstock.deployment.protocol import ServedModel, State
from penstock.errors import Forbidden, NotFound
from penstock.gateway.keys.identity import Scope
from penstock.http.api.fields import MODEL_PARAMETER
from penstock.http.api.managed_model import ManagedModel, ManagedModelList, describe_managed
from penstock.http.error_body import ErrorBody
from penstock.http.json_response import json_response
from penstock.http.middleware.tenants import identity_of
from penstock.http.openapi import schemas
from penstock.http.openapi.route_docs import route_docs
from penstock.http.parse.body import read_object
from penstock.http.parse.query import Parameter, read_query
from penstock.http.routing import App
from penstock.http.service import ModelManager, Service
from penstock.settings import ServeSettings


class NewModel(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of [[models]]: `model` or `upstream`, and any setting of its engine or upstream."""

    name: str
    model: str | None = None  # a source, as `penstock serve` takes it
    upstream: str | None = None  # the URL of an OpenAI-compatible API
    aliases: list[str] = []
    load: Literal["start", "demand"] = "start"
    pinned: bool = False
    keep_alive: str | None = None


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the removal of a model."""

    id: str
    deleted: bool = True


class Sleeping(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a model is asleep."""

    is_sleeping: bool


ANSWERS = (NewModel, Removed, Sleeping, ManagedModel, ManagedModelList)
# vLLM's levels differ in what becomes of the weights; here they are released in any case.
LEVEL = Parameter(name="level", description="Accepted for clients of vLLM.", choices=("1", "2"))

Manager = Callable[[Request], ModelManager]


def _docs(*bodies: Any, **options: Any) -> dict[str, Any]:
    docs = route_docs(*bodies, **options)
    docs["responses"][403] = schemas.response(ErrorBody, "The API key is not one of admin_key.")
    return docs


def add(app: App, service: Service, settings: ServeSettings) -> None:
    def manager(request: Request) -> ModelManager:
        """Raises Forbidden for a client that may not manage models."""
        if Scope.ADMIN not in identity_of(request.scope).scopes:
            raise Forbidden("managing models needs an API key of admin_key")
        if service.manager is None:
            raise NotFound("the models of this server are fixed")
        return service.manager

    _add_and_remove(app, service, manager, trusted=bool(settings.admin_keys))
    _load_and_unload(app, service, manager)
    _sleep_and_wake(app, service, manager)


def _add_and_remove(app: App, service: Service, manager: Manager, *, trusted: bool) -> None:
    @app.post("/admin/models", **_docs(NewModel, ManagedModel, not_found=None, uses_engine=True))
    async def add_model(request: Request) -> Response:
        """Serve another model. The body is an entry of [[models]] as a JSON object."""
        managing = manager(request)
        model = await managing.add(await read_object(request), trusted=trusted)
        return _described(service, managing, model)

    @app.get("/admin/models", **_docs(None, ManagedModelList, not_found=None))
    async def list_models(request: Request) -> Response:
        """All models and routes, with their deployments: state, load, circuit breaker."""
        managing = manager(request)
        listed = [describe_managed(model, service.gateway, managing) for model in service.models]
        return json_response(msgspec.json.encode(ManagedModelList(data=listed)))

    @app.delete("/admin/models/{name:path}", **_docs(None, Removed, may_reject=True))
    async def remove_model(name: str, request: Request) -> Response:
        """Serve a model no longer. It finishes its requests first."""
        managing, model = manager(request), service.models.find(name)
        await managing.remove(model)
        return json_response(msgspec.json.encode(Removed(id=model.card.name)))


def _load_and_unload(app: App, service: Service, manager: Manager) -> None:
    @app.post(
        "/admin/load", **_docs(None, ManagedModel, may_reject=True, uses_engine=True, parameters=(MODEL_PARAMETER,))
    )
    async def load_model(request: Request) -> Response:
        """Load a model now, and wait until it is ready."""
        managing, model = manager(request), _model(service, request)
        await managing.load(model)
        return _described(service, managing, model)

    @app.post(
        "/admin/unload", **_docs(None, ManagedModel, may_reject=True, uses_engine=True, parameters=(MODEL_PARAMETER,))
    )
    async def unload_model(request: Request) -> Response:
        """Unload a model, once its requests have ended. The next request loads it again."""
        managing, model = manager(request), _model(service, request)
        await managing.unload(model)
        return _described(service, managing, model)


def _sleep_and_wake(app: App, service: Service, manager: Manager) -> None:
    """Named as in vLLM."""

    @app.post(
        "/sleep", **_docs(None, ManagedModel, may_reject=True, uses_engine=True, parameters=(MODEL_PARAMETER, LEVEL))
    )
    async def sleep(request: Request) -> Response:
        """Release the memory of a model, once its requests have ended. Its processes stay; a request wakes it."""
        managing, model = manager(request), _model(service, request)
        await managing.sleep(model)
        return _described(service, managing, model)

    @app.post("/wake_up", **_docs(None, ManagedModel, may_reject=True, uses_engine=True, parameters=(MODEL_PARAMETER,)))
    async def wake_up(request: Request) -> Response:
        """Wake a model, and wait until it is ready."""
        managing, model = manager(request), _model(service, request)
        await managing.load(model)
        return _described(service, managing, model)

    @app.get("/is_sleeping", **route_docs(None, Sleeping, may_reject=True, parameters=(MODEL_PARAMETER,)))
    async def is_sleeping(request: Request) -> Response:
        """Whether a model is asleep."""
        state = _model(service, request).state
        return json_response(msgspec.json.encode(Sleeping(is_sleeping=state is State.ASLEEP)))


def _described(service: Service, managing: ModelManager, model: ServedModel) -> Response:
    return json_response(msgspec.json.encode(describe_managed(model, service.gateway, managing)))


def _model(service: Service, request: Request) -> LocalModel:
    return service.models.find_local(read_query(request, (MODEL_PARAMETER, LEVEL))["model"])
