"""A JSON response of bytes that are encoded already."""

from __future__ import annotations

from starlette.responses import Response


def json_response(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")
