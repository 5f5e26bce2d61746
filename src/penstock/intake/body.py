"""The bytes of a request's body."""

from __future__ import annotations

from starlette.requests import Request

from penstock.errors import MediaTypeUnsupported


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
