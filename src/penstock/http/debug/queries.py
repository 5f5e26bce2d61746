"""What several debug routes ask: the engine, which answers between two steps, and the journal."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request

from penstock.deployment.local_model import LocalModel
from penstock.deployment.replica import Replica
from penstock.errors import EngineDied, NotFound
from penstock.flow.identity import Source
from penstock.http.middleware.tenants import identity_of, tenant_of
from penstock.http.service import Service
from penstock.observe.observer import Observer
from penstock.observe.trace.records import RequestTrace

TIMEOUT_S = 30.0  # for an engine in a long step


def find_replica(model: LocalModel, number: int | None) -> Replica:
    """The replica of this number; None: the first. Raises NotFound."""
    replicas = model.replicas.replicas
    if not replicas:
        raise NotFound(f"the model {model.name} is not loaded")
    if number is None:
        return replicas[0]
    found = next((replica for replica in replicas if replica.source.replica == number), None)
    if found is None:
        there = ", ".join(str(replica.source.replica) for replica in replicas)
        raise NotFound(f"the model {model.name} has no replica {number}; it has {there}")
    return found


def model_of_query(service: Service, request: Request, query: dict[str, Any]) -> LocalModel:
    """The model that the parameter `model` of a route names, of those that the key may use."""
    return service.models_of(identity_of(request.scope)).find_local(query["model"])


def replica_of_query(service: Service, request: Request, query: dict[str, Any]) -> Replica:
    """The replica that the parameters `model` and `replica` of a route name."""
    return find_replica(model_of_query(service, request, query), query["replica"])


def source_of_query(service: Service, request: Request, query: dict[str, Any]) -> Source:
    """The same of what the journal has, whether or not the model is loaded now."""
    return Source(model_of_query(service, request, query).base.name, query["replica"] or 0)


async def ask_engine(replica: Replica, kind: str, **arguments: Any) -> Any:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await replica.ask(kind, **arguments)
    except TimeoutError:
        raise EngineDied("the engine does not answer; try again in a moment") from None


def find_request(observer: Observer, name: str, request: Request) -> RequestTrace:
    found = observer.journal.find(name, tenant_of(request.scope))
    if found is None:
        raise NotFound(f"request {name[:128]!r} is not recorded; the last {len(observer.journal.done)} requests are")
    return found
