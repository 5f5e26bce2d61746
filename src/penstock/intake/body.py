"""The body of a request."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from penstock.errors import MediaTypeUnsupported
from penstock.intake.parse import Schema, parse

LONG_BODY = 256 * 1024  # bytes: checking more than that would hold up everybody else's tokens


async def read(schema: type[Schema], request: Request) -> Schema:
    """Raises InvalidRequest for what the schema does not take."""
    raw = await read_json(request)
    return await asyncio.to_thread(parse, schema, raw) if len(raw) > LONG_BODY else parse(schema, raw)


async def read_json(request: Request) -> bytes:
    """Only what says that it is JSON: anything else a browser would send from any page, without asking first."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        given = f", not as {kind[:64]}" if kind else ""
        raise MediaTypeUnsupported(f"send the body with content-type: application/json{given}")
    packed = request.headers.get("content-encoding", "identity").strip().lower()
    if packed != "identity":
        raise MediaTypeUnsupported(f"send the body as it is, without content-encoding: {packed[:64]}")
    return await request.body()
