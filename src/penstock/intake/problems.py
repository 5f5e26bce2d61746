"""Errors as a client sees them: OpenAI's error body, the HTTP status and what else goes into the header.

What Penstock raises on purpose tells the client what is wrong. Anything else is our own mistake: the client gets an id
to quote, and the reasons stay in the server's log.
"""

from __future__ import annotations

import msgspec

from penstock.errors import EngineDied, PenstockError, QueueFull, Unauthorized

_HEADERS = {
    Unauthorized.status: {"WWW-Authenticate": "Bearer"},
    # Seconds: a queue moves, and a dead engine is replaced, within about as long.
    QueueFull.status: {"Retry-After": "1"},
    EngineDied.status: {"Retry-After": "1"},
}

# SamplingParams' names of fields that the API calls otherwise; only these checks are made behind `intake`.
_API_NAMES = {"stop_tokens": "stop_token_ids", "timeout_s": "timeout"}


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every answer that is not a success, and the data of an error event in a stream."""

    error: ErrorDetail


class Problem(msgspec.Struct, frozen=True):
    status: int
    body: bytes  # JSON
    headers: dict[str, str] = {}


def describe(error: BaseException, request_id: str) -> Problem:
    """What a client is told of an error."""
    if not isinstance(error, PenstockError) or error.status == PenstockError.status:
        error = PenstockError(f"internal error; the server's log says more about request {request_id}")
    message, param = error.message, error.param
    if param in _API_NAMES:
        message, param = message.replace(param, _API_NAMES[param], 1), _API_NAMES[param]
    detail = ErrorDetail(message, _type(error.status), param, error.code)
    return Problem(error.status, msgspec.json.encode(ErrorBody(detail)), _HEADERS.get(error.status, {}))


def _type(status: int) -> str:
    """As OpenAI names them: its 401 and 404 are invalid requests too, and a 429 names what there are too many of."""
    if status == QueueFull.status:
        return "requests"
    return "server_error" if status >= 500 else "invalid_request_error"
