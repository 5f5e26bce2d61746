"""Routes of LoRA adapters, which come and go while the server runs: named as in vLLM, and with all there is to say."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from penstock.deployment.adapter_model import AdapterModel
from penstock.deployment.adapter_store import FILES
from penstock.deployment.adapters import AdapterManager, adapter_entry
from penstock.errors import AlreadyExists, InvalidRequest, ModelNotFound, NotFound
from penstock.gateway.keys.identity import Scope
from penstock.http.api.admin.actions import audited
from penstock.http.api.admin.adapter_bodies import (
    AdapterList,
    AdapterObject,
    LoadLoraAdapter,
    NewAdapter,
    RemovedAdapter,
    UnloadLoraAdapter,
    describe_adapter,
    read_fields,
)
from penstock.http.error_body import ErrorBody
from penstock.http.json_response import json_response
from penstock.http.middleware.tenants import identity_of
from penstock.http.openapi import schemas
from penstock.http.openapi.route_docs import route_docs
from penstock.http.page_origin import check_page_origin
from penstock.http.parse.body import read_object
from penstock.http.parse.multipart import MultipartForm, receive_form
from penstock.http.parse.query import Parameter, read_query
from penstock.http.routing import App
from penstock.http.service import Service
from penstock.settings import PriceSettings, Settings
from penstock.settings.sections import error_in_words
from penstock.system import typed

PATH = "/admin/adapters"
UPLOAD_PATH = f"{PATH}/upload"
DRAIN_S = 60.0
TIMEOUT = Parameter(
    name="timeout_s",
    description="Seconds to wait for its running requests.",
    type="number",
    bounds=(0, 3600),
    default=DRAIN_S,
)
FORM_FIELDS = ("name", "model", "price", "replace")
_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string"},
                        "model": {"type": "string"},
                        "price": {"type": "string"},
                        "replace": {"type": "string", "enum": ["true", "false"]},
                        **{field: {"type": "string", "format": "binary"} for field in FILES},
                    },
                    "required": ["name"],
                }
            }
        },
    }
}


def add(app: App, service: Service, settings: Settings) -> None:
    _add_list(app, service)
    _add_changes(app, service)
    _add_upload(app, service, settings)
    _add_vllm(app, service)


def _adapters(service: Service) -> AdapterManager:
    if service.manager is None:
        raise NotFound("the models of this server are fixed")
    return service.manager.adapters


def _change_docs(request: type[msgspec.Struct] | None, answer: type[msgspec.Struct], **more: Any) -> dict[str, Any]:
    docs = route_docs(request, answer, may_reject=True, uses_engine=True, **more)
    docs["responses"] |= {
        409: schemas.response(ErrorBody, "Another model has the name."),
        422: schemas.response(ErrorBody, "The files are no adapter, or do not fit the model."),
        502: schemas.response(ErrorBody, "The hub or the package index did not deliver it."),
        504: schemas.response(ErrorBody, "It is removed, but requests of it still run."),
    }
    return docs


def _add_list(app: App, service: Service) -> None:
    @app.requiring(Scope.ADMIN, Scope.OBSERVE).get(PATH, **route_docs(None, AdapterList, not_found=None))
    async def list_adapters(request: Request) -> Response:
        """The LoRA adapters of all models, and which engines have them in memory."""
        manager = _adapters(service)
        known = await manager.residency()
        models = service.models_of(identity_of(request.scope)).adapters
        listed = [describe_adapter(model, manager.open(model), known) for model in models]
        return json_response(msgspec.json.encode(AdapterList(data=listed)))


def _add_changes(app: App, service: Service) -> None:
    admin = app.requiring(Scope.ADMIN)

    @admin.post(PATH, **_change_docs(NewAdapter, AdapterObject))
    async def add_adapter(request: Request) -> Response:
        """Serve an adapter, from a path inside `adapter_folders`, a hub id or `pypi:`."""
        manager, body = _adapters(service), read_fields(NewAdapter, await read_object(request))
        details = {"source": body.source[:256], "model": str(body.model)[:256], "replace": body.replace}
        async with audited(service, request, "adapter.add", body.name, details):
            entry = adapter_entry(body.name, body.source, aliases=tuple(body.aliases), price=body.price)
            model = await manager.add(entry, body.model, replace=body.replace)
        return _described(model)

    @admin.delete(f"{PATH}/{{name:path}}", **_change_docs(None, RemovedAdapter, parameters=(TIMEOUT,)))
    async def remove_adapter(name: str, request: Request) -> Response:
        """Serve an adapter no longer. New requests get a 404 at once; the answer waits for those that run."""
        timeout_s = read_query(request, (TIMEOUT,))["timeout_s"]
        manager, model = _adapters(service), _find(service, name)
        async with audited(service, request, "adapter.remove", model.card.name):
            await manager.remove(model, timeout_s)
        return json_response(msgspec.json.encode(RemovedAdapter(id=model.card.name)))


def _add_upload(app: App, service: Service, settings: Settings) -> None:
    docs = _change_docs(None, AdapterObject)
    docs["responses"] |= {
        413: schemas.response(ErrorBody, "The adapter is too large."),
        415: schemas.response(ErrorBody, "The body is not multipart/form-data."),
        507: schemas.response(ErrorBody, "The disk has no room for it."),
    }

    @app.requiring(Scope.ADMIN).post(UPLOAD_PATH, **{**docs, "openapi_extra": _FORM})
    async def upload_adapter(request: Request) -> Response:
        """Serve an adapter whose files are sent: a multipart form with `name`, `config` (adapter_config.json) and
        `weights` (adapter_model.safetensors), or `gguf`; and `model`, `price` (JSON) and `replace` (true)."""
        check_page_origin(request, settings)
        manager = _adapters(service)
        length = request.headers.get("content-length", "")
        with await asyncio.to_thread(manager.store.new_upload, int(length) if length.isdecimal() else 0) as upload:
            form = MultipartForm(request.headers.get("content-type", ""), upload.write, FILES)
            await receive_form(request, form, asyncio.to_thread)
            name, price, replace = _read_form(form.fields)
            details = {"model": form.fields.get("model", "")[:256], "replace": replace}
            async with audited(service, request, "adapter.upload", name, details):
                base = form.fields.get("model")
                model = await manager.add_upload(upload, name, base, price=price, replace=replace)
        return _described(model)


def _read_form(fields: dict[str, str]) -> tuple[str, PriceSettings | None, bool]:
    for name in fields:
        if name not in FORM_FIELDS:
            known = ", ".join((*FILES, *FORM_FIELDS))
            raise InvalidRequest(f"{name} is not a known field; known are {known}", param=name)
    if not fields.get("name"):
        raise InvalidRequest("name is required", param="name")
    if fields.get("replace", "false") not in ("true", "false"):
        raise InvalidRequest("replace must be true or false", param="replace")
    try:
        price = typed.decode_json(fields["price"], PriceSettings) if fields.get("price") else None
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at ")
        raise InvalidRequest(f"price{path.strip('`$')} {error_in_words(what)}", param="price") from None
    except msgspec.DecodeError:
        raise InvalidRequest('price must be a JSON object such as {"input": 0.1}', param="price") from None
    return fields["name"], price, fields.get("replace") == "true"


def _add_vllm(app: App, service: Service) -> None:
    admin = app.requiring(Scope.ADMIN)

    @admin.post("/v1/load_lora_adapter", **_text_docs(LoadLoraAdapter))
    async def load_lora_adapter(request: Request) -> Response:
        """Serve an adapter, as with vLLM."""
        manager, body = _adapters(service), read_fields(LoadLoraAdapter, await read_object(request))
        details = {"source": body.lora_path[:256], "replace": body.load_inplace}
        async with audited(service, request, "adapter.add", body.lora_name, details):
            entry = adapter_entry(body.lora_name, body.lora_path, param="lora_name")
            try:
                await manager.add(entry, body.base_model_name, replace=body.load_inplace, bare=True)
            except AlreadyExists as error:  # vLLM answers 400
                raise InvalidRequest(
                    f"the lora adapter {body.lora_name!r} has already been loaded: {error.message}", param="lora_name"
                ) from None
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    @admin.post("/v1/unload_lora_adapter", **_text_docs(UnloadLoraAdapter))
    async def unload_lora_adapter(request: Request) -> Response:
        """Serve an adapter no longer, as with vLLM. The answer waits for its running requests."""
        manager, body = _adapters(service), read_fields(UnloadLoraAdapter, await read_object(request))
        model = _find(service, body.lora_name, "lora_name")
        async with audited(service, request, "adapter.remove", model.card.name):
            await manager.remove(model, DRAIN_S)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _text_docs(request: type[msgspec.Struct]) -> dict[str, Any]:
    docs = _change_docs(request, RemovedAdapter)
    text = {"text/plain": {"schema": {"type": "string"}}}
    docs["responses"] |= {200: {"description": "Done.", "content": text}}
    return docs


def _find(service: Service, name: str, param: str = "name") -> AdapterModel:
    """By its id, or its name alone if that is unique."""
    try:
        model = service.models.find(name)
    except ModelNotFound as error:
        raise ModelNotFound(error.message, param=param) from None
    if not isinstance(model, AdapterModel):
        raise InvalidRequest(f"{model.card.name} is not an adapter", param=param)
    return model


def _described(model: AdapterModel) -> Response:
    return json_response(msgspec.json.encode(describe_adapter(model, model.open)))
