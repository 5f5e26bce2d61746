"""The body of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request

from penstock.errors import MediaTypeUnsupported
from penstock.intake.decode import decoded
from penstock.intake.parse import Schema, parse

LONG_BODY = 256 * 1024  # bytes: checking more than that would hold up everybody else's tokens


Read = TypeVar("Read")


async def read(schema: type[Schema], request: Request) -> Schema:
    """Raises InvalidRequest for what the schema does not take."""
    return await _read(request, partial(parse, schema))


async def read_object(request: Request) -> dict[str, Any]:
    """Whatever it holds. Raises InvalidRequest if it is no JSON object."""
    return await _read(request, decoded)


async def _read(request: Request, check: Callable[[bytes], Read]) -> Read:
    raw = await _json(request)
    return await asyncio.to_thread(check, raw) if len(raw) > LONG_BODY else check(raw)


async def _json(request: Request) -> bytes:
    """Only what says that it is JSON: anything else a browser would send from any page, without asking first."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        given = f", not as {kind[:64]}" if kind else ""
        raise MediaTypeUnsupported(f"send the body with content-type: application/json{given}")
    packed = request.headers.get("content-encoding", "identity").strip().lower()
    if packed != "identity":
        raise MediaTypeUnsupported(f"send the body as it is, without content-encoding: {packed[:64]}")
    return await request.body()
