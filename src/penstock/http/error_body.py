"""Errors as a client sees them: OpenAI's error body, the HTTP status and what else goes into the header. Anthropic's
body is in `http.api.anthropic.error_body`.

What Penstock raises on purpose tells the client what is wrong. Anything else is our own mistake: the client gets an id
to quote, and the reasons stay in the server's log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec

from penstock.errors import EngineDied, InvalidRequest, PenstockError, QueueFull, Unauthorized
from penstock.http.api.openai import response_format

_HEADERS = {
    Unauthorized.status: {"WWW-Authenticate": "Bearer"},
    # Seconds: a queue moves, and a dead engine is replaced, within about as long.
    QueueFull.status: {"Retry-After": "1"},
    EngineDied.status: {"Retry-After": "1"},
}

# SamplingParams' names of fields that the API calls otherwise; only these checks are made behind `intake`.
_API_NAMES = {"stop_tokens": "stop_token_ids", "timeout_s": "timeout", **response_format.NAMES}


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
    message: str  # in the body, too
    headers: dict[str, str] = {}


def describe(error: BaseException, request_id: str) -> Problem:
    """What a client is told of an error."""
    error = tellable(error, request_id)
    message, param = error.message, error.param
    if param in _API_NAMES:
        message, param = message.replace(param, _API_NAMES[param], 1), _API_NAMES[param]
    detail = ErrorDetail(message, _type(error.status), param, error.code)
    return Problem(error.status, msgspec.json.encode(ErrorBody(detail)), message, headers(error))


def tellable(error: BaseException, request_id: str) -> PenstockError:
    """The error itself, or what stands for one that is nobody's business."""
    if isinstance(error, PenstockError) and error.status != PenstockError.status:
        return error
    return PenstockError(f"internal error; the server's log says more about request {request_id}")


def headers(error: PenstockError) -> dict[str, str]:
    return _HEADERS.get(error.status, {})


@contextmanager
def called(names: Mapping[str, str]) -> Iterator[None]:
    """What is raised inside calls fields as `names` does: an API's names of what has others behind `intake`."""
    try:
        yield
    except InvalidRequest as error:
        for inside, outside in names.items():
            part = re.compile(rf"(?<!\w){re.escape(inside)}(?!\w)")
            if part.search(error.param or ""):
                error.param = part.sub(outside, error.param or "")
                error.message = part.sub(outside, error.message)
        raise


def _type(status: int) -> str:
    """As OpenAI names them: its 401 and 404 are invalid requests too, and a 429 names what there are too many of."""
    if status == QueueFull.status:
        return "requests"
    return "server_error" if status >= 500 else "invalid_request_error"
