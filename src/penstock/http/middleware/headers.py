"""Request headers of an ASGI scope."""

from __future__ import annotations

from starlette.types import Scope


def get_header(scope: Scope, name: bytes) -> bytes | None:
    """The first of this name, which is in lower case."""
    return next((value for key, value in scope["headers"] if key == name), None)
