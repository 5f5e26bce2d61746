"""Errors in Ollama's format: one sentence, which names the parameter."""

from __future__ import annotations

import msgspec

from penstock.http.error_body import RenderedError, error_headers, message_with_param, public_error

PATH_PREFIX = "/api/"


class OllamaErrorBody(msgspec.Struct, frozen=True):
    """The body of every answer that is not a success, and the last line of a stream that breaks off."""

    error: str


def render_error(error: BaseException, request_id: str) -> RenderedError:
    error = public_error(error, request_id)
    message = message_with_param(error)
    return RenderedError(error.status, msgspec.json.encode(OllamaErrorBody(message)), message, error_headers(error))
