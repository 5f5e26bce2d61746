"""Routes of models, which are added, loaded, unloaded and removed while the server runs."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.deployment.local_model import LocalModel
from penstock.deployment.protocol import ServedModel, State
from penstock.errors import NotFound
from penstock.gateway.keys.identity import Scope
from penstock.http.api.admin.actions import audited
from penstock.http.api.admin.managed_model import ManagedModel, ManagedModelList, describe_managed
from penstock.http.api.fields import MODEL_PARAMETER
from penstock.http.json_response import json_response
from penstock.http.openapi.route_docs import route_docs
from penstock.http.page_origin import check_page_origin
from penstock.http.parse.body import read_object
from penstock.http.parse.query import Parameter, read_query
from penstock.http.routing import App
from penstock.http.service import ModelManager, Service
from penstock.settings import Settings


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


def add(app: App, service: Service, settings: Settings) -> None:
    _add_and_remove(app, service, trusted=settings.needs_key)
    _load_and_unload(app, service, settings)
    _sleep_and_wake(app, service, settings)


def _change_docs(*parameters: Parameter) -> dict[str, Any]:
    return route_docs(None, ManagedModel, may_reject=True, uses_engine=True, parameters=parameters)


def _manager(service: Service) -> ModelManager:
    if service.manager is None:
        raise NotFound("the models of this server are fixed")
    return service.manager


def _add_and_remove(app: App, service: Service, *, trusted: bool) -> None:
    """`trusted`: only keys with the scope `admin` get here, since the server has keys."""
    admin = app.requiring(Scope.ADMIN)

    @admin.post("/admin/models", **route_docs(NewModel, ManagedModel, not_found=None, uses_engine=True))
    async def add_model(request: Request) -> Response:
        """Serve another model. The body is an entry of [[models]] as a JSON object."""
        manager, entry = _manager(service), await read_object(request)
        details = {"model": str(entry.get("model"))[:256], "fields": [name[:64] for name in sorted(entry)][:64]}
        async with audited(service, request, "model.add", str(entry.get("name")), details):
            model = await manager.add(entry, trusted=trusted)
        return _described(service, manager, model)

    @admin.get("/admin/models", **route_docs(None, ManagedModelList, not_found=None))
    async def list_models() -> Response:
        """All models and routes, with their deployments: state, load, circuit breaker."""
        manager = _manager(service)
        listed = [describe_managed(model, service.gateway, manager, service.autoscaler) for model in service.models]
        return json_response(msgspec.json.encode(ManagedModelList(data=listed)))

    @admin.delete("/admin/models/{name:path}", **route_docs(None, Removed, may_reject=True))
    async def remove_model(name: str, request: Request) -> Response:
        """Serve a model no longer. It finishes its requests first."""
        manager, model = _manager(service), service.models.find(name)
        async with audited(service, request, "model.remove", model.card.name):
            await manager.remove(model)
        return json_response(msgspec.json.encode(Removed(id=model.card.name)))


def _load_and_unload(app: App, service: Service, settings: Settings) -> None:
    admin = app.requiring(Scope.ADMIN)

    @admin.post("/admin/load", **_change_docs(MODEL_PARAMETER))
    async def load_model(request: Request) -> Response:
        """Load a model now, and wait until it is ready."""
        check_page_origin(request, settings)
        manager, model = _manager(service), _model(service, request)
        async with audited(service, request, "model.load", model.name):
            await manager.load(model)
        return _described(service, manager, model)

    @admin.post("/admin/unload", **_change_docs(MODEL_PARAMETER))
    async def unload_model(request: Request) -> Response:
        """Unload a model, once its requests have ended. The next request loads it again."""
        check_page_origin(request, settings)
        manager, model = _manager(service), _model(service, request)
        async with audited(service, request, "model.unload", model.name):
            await manager.unload(model)
        return _described(service, manager, model)


def _sleep_and_wake(app: App, service: Service, settings: Settings) -> None:
    """Named as in vLLM."""
    admin = app.requiring(Scope.ADMIN)

    @admin.post("/sleep", **_change_docs(MODEL_PARAMETER, LEVEL))
    async def sleep(request: Request) -> Response:
        """Release the memory of a model, once its requests have ended. Its processes stay; a request wakes it."""
        check_page_origin(request, settings)
        manager, model = _manager(service), _model(service, request)
        async with audited(service, request, "model.sleep", model.name):
            await manager.sleep(model)
        return _described(service, manager, model)

    @admin.post("/wake_up", **_change_docs(MODEL_PARAMETER))
    async def wake_up(request: Request) -> Response:
        """Wake a model, and wait until it is ready."""
        check_page_origin(request, settings)
        manager, model = _manager(service), _model(service, request)
        async with audited(service, request, "model.wake", model.name):
            await manager.load(model)
        return _described(service, manager, model)

    @app.requiring(*Scope).get(
        "/is_sleeping", **route_docs(None, Sleeping, may_reject=True, parameters=(MODEL_PARAMETER,))
    )
    async def is_sleeping(request: Request) -> Response:
        """Whether a model is asleep."""
        state = _model(service, request).state
        return json_response(msgspec.json.encode(Sleeping(is_sleeping=state is State.ASLEEP)))


def _described(service: Service, managing: ModelManager, model: ServedModel) -> Response:
    return json_response(msgspec.json.encode(describe_managed(model, service.gateway, managing, service.autoscaler)))


def _model(service: Service, request: Request) -> LocalModel:
    return service.models.find_local(read_query(request, (MODEL_PARAMETER, LEVEL))["model"])
