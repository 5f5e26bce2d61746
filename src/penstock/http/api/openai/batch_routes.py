"""The routes of batches, and what runs them. Each tenant sees its own."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from penstock.batch.data_folder import DATABASE, DataFolder
from penstock.batch.limiter import Capacity
from penstock.batch.manager import BatchManager
from penstock.batch.metrics import BatchCollector
from penstock.batch.records import Batch
from penstock.deployment.local_model import LocalModel
from penstock.deployment.protocol import State
from penstock.errors import KeyExpired, KeyRevoked, ModelNotFound, Unauthorized
from penstock.gateway.keys.identity import Identity, Scope
from penstock.http.api.openai import file_bodies, file_routes
from penstock.http.api.openai.batch_dispatch import LineDispatcher
from penstock.http.json_response import json_response
from penstock.http.middleware.tenants import identity_of, tenant_of
from penstock.http.openapi.route_docs import route_docs
from penstock.http.page_origin import check_page_origin
from penstock.http.parse.body import read_body
from penstock.http.parse.query import Parameter, read_query
from penstock.http.routing import App
from penstock.http.service import Service, takes_requests
from penstock.settings import Settings, parse_bytes

PATH = "/v1/batches"
NOT_FOUND = "No such batch."
UPSTREAM_SLOTS = 16  # as many requests of batches and others are sent to an upstream at once
LIST = (
    Parameter(name="after", description="The id of the batch behind which to begin."),
    Parameter(name="limit", description="Most batches of a page.", type="integer", bounds=(1, 100), default=20),
)


def add(app: App, service: Service, settings: Settings) -> None:
    """The routes of files and batches."""
    inference = app.requiring(Scope.INFERENCE)
    service.batches = manager = new_manager(app, service, settings)
    service.metrics.registry.register(BatchCollector(manager))
    file_routes.add(app, manager, settings)
    docs = route_docs(file_bodies.BatchRequest, file_bodies.BatchObject, uses_engine=True, not_found="No such file.")

    @inference.post(PATH, **docs)
    async def create_batch(request: Request) -> Response:
        """Run the requests of a file in the background, within 24 hours."""
        body = await read_body(file_bodies.BatchRequest, request)
        expires = body.output_expires_after
        batch = await manager.create_batch(
            tenant_of(request.scope),
            key=identity_of(request.scope).key,
            input_file_id=body.input_file_id,
            endpoint=body.endpoint,
            metadata=body.metadata,
            output_expires_s=None if expires is None else expires.seconds,
        )
        return json_response(file_bodies.encode_batch(batch))

    list_docs = route_docs(None, file_bodies.BatchList, not_found=None, may_reject=True, parameters=LIST)
    list_docs["responses"] |= file_routes.STORAGE_ERRORS

    @inference.get(PATH, **list_docs)
    async def list_batches(request: Request) -> Response:
        """All batches, newest first."""
        batches, more = await manager.batches(tenant_of(request.scope), **read_query(request, LIST))
        return json_response(file_bodies.encode_batches(batches, more=more))

    single_docs = route_docs(None, file_bodies.BatchObject, not_found=NOT_FOUND)
    single_docs["responses"] |= file_routes.STORAGE_ERRORS

    @inference.get(f"{PATH}/{{batch_id}}", **single_docs)
    async def retrieve_batch(request: Request, batch_id: str) -> Response:
        """One batch: its status, counts, errors and files."""
        return json_response(file_bodies.encode_batch(await manager.batch(tenant_of(request.scope), batch_id)))

    cancel_docs = route_docs(None, file_bodies.BatchObject, not_found=NOT_FOUND, may_reject=True)
    cancel_docs["responses"] |= file_routes.STORAGE_ERRORS

    @inference.post(f"{PATH}/{{batch_id}}/cancel", **cancel_docs)
    async def cancel_batch(request: Request, batch_id: str) -> Response:
        """Stop a batch. What has run is in its output file."""
        check_page_origin(request, settings)
        return json_response(file_bodies.encode_batch(await manager.cancel(tenant_of(request.scope), batch_id)))


def new_manager(app: App, service: Service, settings: Settings) -> BatchManager:
    def capacity(name: str) -> Capacity | None:
        try:
            model = service.models.find(name)
        except ModelNotFound:
            return None
        if service.closing or not takes_requests(model.state):
            return None
        if model.state is not State.READY:  # loading it may take memory from models that are in use
            return Capacity(1, 0) if service.open <= manager.limiters.running else None
        if not isinstance(model, LocalModel):
            if service.gateway.router.open_circuit(model) is not None and not service.gateway.chains.get(name):
                return None
            return Capacity(UPSTREAM_SLOTS, _interactive(service.open_by_model[name], name))
        ready = [replica for replica in model.replicas.replicas if replica.state is State.READY]
        slots = sum(replica.facts["max_sequences"] for replica in ready)
        return Capacity(slots, _interactive(model.replicas.open, name))

    def _interactive(count: int, name: str) -> int:
        """Those of `count` that are not of batches."""
        return max(0, count - manager.limiters.of(name).running)

    def identity(batch: Batch) -> Identity:
        """Of the key that created the batch, as it is now. Raises KeyRevoked and KeyExpired. A batch of a key that is
        not in the settings any more runs to its end."""
        try:
            found = service.keys.find(batch.key)
        except (KeyRevoked, KeyExpired):
            raise
        except Unauthorized:
            found = Identity(scopes=frozenset({Scope.INFERENCE}))
        return replace(found, tenant=batch.tenant)

    folder, shared = settings.data_folder, service.batch_data
    manager = BatchManager(
        partial(DataFolder, folder) if shared is None else shared,
        may_have_batches=lambda: shared is not None or (folder / DATABASE).exists(),
        dispatch=LineDispatcher(app, identity),
        capacity=capacity,
        find_model=lambda batch, name: service.models_of(identity(batch)).find(name).card.name,
        max_line=parse_bytes(settings.serve.max_body, "max_body"),
    )
    return manager
