"""Errors as Ollama's clients know them: one sentence, which names the field at fault."""

from __future__ import annotations

import msgspec

from penstock.http.error_body import Problem, headers, tellable


class OllamaErrorBody(msgspec.Struct, frozen=True):
    """The body of every answer that is not a success, and the last line of a stream that breaks off."""

    error: str


def spoken(path: str) -> bool:
    """Whether whoever asks for this speaks Ollama's API."""
    return path.startswith("/api/")


def describe(error: BaseException, request_id: str) -> Problem:
    told = tellable(error, request_id)
    named = told.param is None or told.param in told.message
    message = told.message if named else f"{told.param}: {told.message}"
    return Problem(told.status, msgspec.json.encode(OllamaErrorBody(message)), message, headers(told))
