"""What several debug routes ask: the engine, which answers between two steps, and the journal."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request

from penstock.errors import EngineDied, NotFound
from penstock.http.middleware.tenants import tenant_of
from penstock.http.service import Service
from penstock.observe.observer import Observer
from penstock.observe.trace.records import RequestTrace

TIMEOUT_S = 30.0  # for an engine in a long step


async def ask_engine(service: Service, kind: str, **arguments: Any) -> Any:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await service.replica.ask(kind, **arguments)
    except TimeoutError:
        raise EngineDied("the engine does not answer; try again in a moment") from None


def find_request(observer: Observer, name: str, request: Request) -> RequestTrace:
    found = observer.journal.find(name, tenant_of(request.scope))
    if found is None:
        raise NotFound(f"request {name[:128]!r} is not recorded; the last {len(observer.journal.done)} requests are")
    return found
