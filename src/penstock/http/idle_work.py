"""What neither the start of a server nor a request should wait for: done while the server is idle, piece by piece, each
in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from pydantic import BaseModel

from penstock.http.api.fields import StrictModel
from penstock.http.parse.schema import build
from penstock.system.daemon_thread import run_in_daemon_thread

if TYPE_CHECKING:
    from penstock.http.service import Service

IDLE_S = 0.5  # after the last request, or after the start: the first client often waits for /ready


async def do_idle_work(service: Service) -> None:
    """Build the validators of request bodies, up to 50 ms for each API, and measure vocabularies."""
    await asyncio.sleep(IDLE_S)
    for work in _pieces(service):
        while service.open:
            await asyncio.sleep(IDLE_S)
        await run_in_daemon_thread(work, "idle work")


def _pieces(service: Service) -> Iterator[Callable[[], object]]:
    for schema in _schemas(StrictModel):
        if not schema.__pydantic_complete__:
            yield partial(build, schema)
    for model in service.models.local:
        yield partial(getattr, model.tokenizer, "longest")


def _schemas(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for schema in base.__subclasses__():
        yield schema
        yield from _schemas(schema)
