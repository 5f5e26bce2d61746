"""Error bodies in OpenAI's format, which is also that of Penstock's own routes; other APIs have an `error_body` of
their own and share what is here.

A PenstockError tells the client what is wrong. Any other exception is a bug: the client gets a request id to quote, the
details stay in the server's log.
"""

from __future__ import annotations

import math

import msgspec

from penstock.errors import BudgetExhausted, EngineDied, PenstockError, QueueFull, RateLimited, Unauthorized

_HEADERS = {
    Unauthorized.status: {"WWW-Authenticate": "Bearer"},
    # Seconds: a queue moves, and a dead engine is replaced, in about that time.
    QueueFull.status: {"Retry-After": "1"},
    EngineDied.status: {"Retry-After": "1"},
}


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every answer that is not a success, and the data of an error event in a stream."""

    error: ErrorDetail


class RenderedError(msgspec.Struct, frozen=True):
    """An error as an API's clients expect it."""

    status: int
    body: bytes  # JSON
    message: str  # also in the body
    headers: dict[str, str] = {}


def render_error(error: BaseException, request_id: str) -> RenderedError:
    error = public_error(error, request_id)
    detail = ErrorDetail(error.message, _error_type(error), error.param, error.code)
    return RenderedError(error.status, msgspec.json.encode(ErrorBody(detail)), error.message, error_headers(error))


def public_error(error: BaseException, request_id: str) -> PenstockError:
    """The error itself, or a stand-in that reveals no internals."""
    if isinstance(error, PenstockError) and error.status != PenstockError.status:
        return error
    return PenstockError(f"internal error; the server's log says more about request {request_id}")


def message_with_param(error: PenstockError) -> str:
    """For APIs whose error body has no field for the parameter."""
    named = error.param is None or error.param in error.message
    return error.message if named else f"{error.param}: {error.message}"


def error_headers(error: PenstockError) -> dict[str, str]:
    if error.retry_after_s is not None:
        return {"Retry-After": str(max(1, math.ceil(error.retry_after_s))), **error.headers}
    return {**_HEADERS.get(error.status, {}), **error.headers}


def _error_type(error: PenstockError) -> str:
    """OpenAI's names: its 401 and 404 are invalid requests too, and a 429 says what there are too many of."""
    if isinstance(error, BudgetExhausted):
        return error.code
    if error.status == QueueFull.status:
        tokens = isinstance(error, RateLimited) and error.limit == "tokens_per_minute"
        return "tokens" if tokens else "requests"
    return "server_error" if error.status >= 500 else "invalid_request_error"
