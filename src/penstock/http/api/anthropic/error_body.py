"""Errors in Anthropic's format. It has no field for the parameter: the message names it."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from penstock.http.error_body import RenderedError, error_headers, message_with_param, public_error

PATH_PREFIX = "/v1/messages"
VERSION_HEADER = "anthropic-version"  # of all requests of Anthropic's clients, also on paths that other APIs share

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "overloaded_error",
    "api_error",
]
_TYPE_OF_STATUS: dict[int, ErrorType] = {
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
    type: ErrorType
    message: str
    details: ThreadUnsupported | UnsetType = UNSET


class AnthropicErrorBody(msgspec.Struct, frozen=True, tag="error", tag_field="type"):
    """The body of every answer that is not a success, and the data of an error event in a stream."""

    error: AnthropicErrorDetail
    request_id: str


def render_error(error: BaseException, request_id: str) -> RenderedError:
    error = public_error(error, request_id)
    kind = _TYPE_OF_STATUS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    message = message_with_param(error)
    details = ThreadUnsupported() if error.param == "thread" else UNSET
    body = AnthropicErrorBody(AnthropicErrorDetail(kind, message, details), request_id)
    return RenderedError(error.status, msgspec.json.encode(body), message, error_headers(error))
