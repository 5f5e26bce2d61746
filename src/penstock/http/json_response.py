"""JSON responses."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response


def json_response(body: bytes, status: int = 200) -> Response:
    """Of JSON that is encoded already."""
    return Response(body, status, media_type="application/json")


def encode_response(value: Any) -> Response:
    return json_response(msgspec.json.encode(value))
