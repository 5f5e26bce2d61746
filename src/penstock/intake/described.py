"""What FastAPI is told of the routes, for the OpenAPI document: it neither parses nor writes their bodies itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import Response
from pydantic import BaseModel

from penstock.intake import openapi
from penstock.intake.openai import models
from penstock.intake.problems import ErrorBody

STATUS = {
    "application/json": {
        "schema": {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}
    }
}
FACTS = {
    "application/json": {
        "schema": {
            "type": "object",
            "properties": {"version": {"type": "string"}, "model": {"type": "string"}},
            "required": ["version", "model"],
        }
    }
}
EXPOSITION = {"text/plain": {"schema": {"type": "string"}}}


def stated(content: dict[str, Any], description: str, *, but: str | None = None) -> dict[str, Any]:
    """Of a route that answers operators. `but`: when the same comes with a 503."""
    described: dict[int | str, Any] = {200: {"description": description, "content": content}, 401: _no_key(ErrorBody)}
    if but is not None:
        described[503] = {"description": but, "content": content}
    return {"responses": described, "response_class": Response}


def documented(
    request: type[BaseModel] | type[msgspec.Struct] | None,
    answer: type[msgspec.Struct],
    *,
    chunk: type[msgspec.Struct] | None = None,
    events: Sequence[type[msgspec.Struct]] = (),
    computed: bool = False,
    error: type[msgspec.Struct] = ErrorBody,
    missing: str = "No such model.",
    choosy: bool = False,
) -> dict[str, Any]:
    """Of a route that answers clients. `computed`: by the engine, as all that is streamed. `choosy`: though it takes no
    body, there are requests that it refuses."""
    described = {200: openapi.response(answer, "The answer.", chunk=chunk, events=events), 401: _no_key(error)}
    if answer is not models.ModelList:
        described[404] = openapi.response(error, missing)
    if request is not None or choosy:
        described[400] = openapi.response(error, "A field is wrong; the message names it.")
    if request is not None:
        described[413] = openapi.response(error, "The body is too large.")
        described[415] = openapi.response(error, "The content-type is not application/json.")
    if computed or chunk is not None or events:
        described[429] = openapi.response(error, "The queue is full; Retry-After says when to come back.")
        described[500] = openapi.response(error, "Something broke; the message has an id to quote.")
        described[503] = openapi.response(error, "The engine is not there, or the server is shutting down.")
    extra = openapi.request_body(request) if request is not None else {}
    return {"responses": described, "openapi_extra": extra, "response_class": Response}


def _no_key(error: type[msgspec.Struct]) -> dict[str, Any]:
    return openapi.response(error, "No API key, or a wrong one.")
