"""Reads the body of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request

from penstock.errors import MediaTypeUnsupported
from penstock.http.parse.json_body import decode_object
from penstock.http.parse.schema import Schema, build, parse

LONG_BODY = 64 * 1024  # bytes: more is parsed in a thread, since it would delay the tokens of running streams

Parsed = TypeVar("Parsed")


async def read_body(schema: type[Schema], request: Request, *, any_type: bool = False) -> Schema:
    """Raises InvalidRequest if the body does not match the schema. `any_type`: accept any content-type, unless a
    browser sends the request."""
    if not schema.__pydantic_complete__:
        await asyncio.to_thread(build, schema)
    return await _read(request, partial(parse, schema), any_type and not _from_browser(request))


async def read_object(request: Request) -> dict[str, Any]:
    """Without a schema. Raises InvalidRequest if the body is not a JSON object."""
    return await _read(request, decode_object)


async def _read(request: Request, parse_bytes: Callable[[bytes], Parsed], any_type: bool = False) -> Parsed:
    raw = await _json(request, any_type)
    try:
        return await asyncio.to_thread(parse_bytes, raw) if len(raw) > LONG_BODY else parse_bytes(raw)
    finally:
        if release := request.scope.get("state", {}).get("release_body"):  # see `body_limit`
            release()


def _from_browser(request: Request) -> bool:
    """Whether a browser sent the request for a web page. Browsers add these headers, and pages cannot remove them.
    Browsers before 2020 may not, but their pages cannot change the user agent."""
    has_origin = any(name in request.headers for name in ("origin", "referer", "sec-fetch-site"))
    return has_origin or request.headers.get("user-agent", "").startswith("Mozilla/")


async def _json(request: Request, any_type: bool) -> bytes:
    """Requires a JSON content-type: with any other, a browser sends a page's request without a CORS preflight."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" and not any_type:
        found = f", not as {content_type[:64]}" if content_type else ""
        raise MediaTypeUnsupported(f"send the body with content-type: application/json{found}")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise MediaTypeUnsupported(f"send the body without content-encoding: {encoding[:64]}")
    return await request.body()
