"""Errors as Anthropic's clients know them. The field at fault is in the message: their body has no place of its own."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from penstock.http.error_body import Problem, headers, tellable

Kind = Literal[
    "invalid_request_error",
    "authentication_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "overloaded_error",
    "api_error",
]
_KINDS: dict[int, Kind] = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ThreadUnsupported(msgspec.Struct, frozen=True, tag="thread_unsupported_request", tag_field="error_code"):
    """What the SDK's tool runner looks for: it then sends the whole conversation, without `thread`."""

    unsupported: tuple[str, ...] = ("thread",)


class AnthropicErrorDetail(msgspec.Struct, frozen=True):
    type: Kind
    message: str
    details: ThreadUnsupported | UnsetType = UNSET


class AnthropicErrorBody(msgspec.Struct, frozen=True, tag="error", tag_field="type"):
    """The body of every answer that is not a success, and the data of an error event in a stream."""

    error: AnthropicErrorDetail
    request_id: str


def spoken(path: str) -> bool:
    """Whether the path is of Anthropic's API."""
    return path == "/v1/messages" or path.startswith("/v1/messages/")


def describe(error: BaseException, request_id: str) -> Problem:
    told = tellable(error, request_id)
    kind = _KINDS.get(told.status, "api_error" if told.status >= 500 else "invalid_request_error")
    named = told.param is None or told.param in told.message
    message = told.message if named else f"{told.param}: {told.message}"
    details = ThreadUnsupported() if told.param == "thread" else UNSET
    body = AnthropicErrorBody(AnthropicErrorDetail(kind, message, details), request_id)
    return Problem(told.status, msgspec.json.encode(body), message, headers(told))
