"""The body of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request

from penstock.errors import MediaTypeUnsupported
from penstock.http.parse.json_body import decode_object
from penstock.http.parse.schema import Schema, parse

LONG_BODY = 64 * 1024  # bytes: checking more than that would hold up everybody else's tokens


Parsed = TypeVar("Parsed")


async def read_body(schema: type[Schema], request: Request, *, any_type: bool = False) -> Schema:
    """Raises InvalidRequest for what the schema does not take. `any_type`: the content-type counts only if the request
    comes from a page."""
    return await _read(request, partial(parse, schema), any_type and not _from_page(request))


async def read_object(request: Request) -> dict[str, Any]:
    """Whatever it holds. Raises InvalidRequest if it is no JSON object."""
    return await _read(request, decode_object)


async def _read(request: Request, check: Callable[[bytes], Parsed], any_type: bool = False) -> Parsed:
    raw = await _json(request, any_type)
    try:
        return await asyncio.to_thread(check, raw) if len(raw) > LONG_BODY else check(raw)
    finally:
        if release := request.scope.get("state", {}).get("release_body"):  # see `body_limit`
            release()


def _from_page(request: Request) -> bool:
    """Whether a browser sent it for a page: they say whose page it is, whatever else the page decides. Those before
    2020 may not, but no page can make them call themselves otherwise."""
    told = any(name in request.headers for name in ("origin", "referer", "sec-fetch-site"))
    return told or request.headers.get("user-agent", "").startswith("Mozilla/")


async def _json(request: Request, any_type: bool) -> bytes:
    """Only what says that it is JSON: anything else a browser would send from any page, without asking first."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not any_type:
        given = f", not as {kind[:64]}" if kind else ""
        raise MediaTypeUnsupported(f"send the body with content-type: application/json{given}")
    packed = request.headers.get("content-encoding", "identity").strip().lower()
    if packed != "identity":
        raise MediaTypeUnsupported(f"send the body as it is, without content-encoding: {packed[:64]}")
    return await request.body()
