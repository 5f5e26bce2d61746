"""What /openapi.json says about a route."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from pydantic import BaseModel

from penstock.http.error_body import ErrorBody
from penstock.http.openapi import schemas
from penstock.http.openapi.schemas import Answer
from penstock.http.parse.query import Parameter
from penstock.http.routing import Responses


def route_docs(
    request: type[BaseModel] | type[msgspec.Struct] | None,
    answer: Answer,
    *,
    chunk: type[msgspec.Struct] | None = None,
    events: Sequence[type[msgspec.Struct]] = (),
    stored_events: Sequence[type[msgspec.Struct]] = (),
    lines: type[msgspec.Struct] | None = None,
    uses_engine: bool = False,
    error: Answer = ErrorBody,
    not_found: str | None = "No such model.",
    may_reject: bool = False,
    parameters: Sequence[Parameter] = (),
) -> dict[str, Any]:
    """Keyword arguments for `app.get` and `app.post`. `chunk`, `events` or `lines` are what a stream of the engine's
    output has; `stored_events` are sent without the engine. `may_reject`: answers 400 though it has no body."""
    answered = schemas.response(answer, "The answer.", chunk=chunk, events=events or stored_events, lines=lines)
    responses: Responses = {200: answered, 401: unauthorized(error)}
    if not_found is not None:
        responses[404] = schemas.response(error, not_found)
    if request is not None or may_reject:
        responses[400] = schemas.response(error, "A field is wrong; the message names it.")
    if request is not None:
        responses |= body_errors(error)
    if uses_engine or chunk is not None or events or lines is not None:
        responses |= engine_errors(error)
    return route_arguments(responses, request, parameters)


def operator_route_docs(content: dict[str, Any], description: str, *, unavailable: str | None = None) -> dict[str, Any]:
    """The same for a route without a schema. `unavailable`: when the same content comes with a 503."""
    responses: Responses = {200: {"description": description, "content": content}, 401: unauthorized(ErrorBody)}
    if unavailable is not None:
        responses[503] = {"description": unavailable, "content": content}
    return {"responses": responses}


def route_arguments(
    responses: Responses, request: type[BaseModel] | type[msgspec.Struct] | None, parameters: Sequence[Parameter]
) -> dict[str, Any]:
    extra = schemas.request_body(request) if request is not None else {}
    if parameters:
        extra["parameters"] = [parameter.openapi() for parameter in parameters]
    return {"responses": responses, "openapi_extra": extra}


def body_errors(error: Answer) -> Responses:
    return {
        413: schemas.response(error, "The body is too large."),
        415: schemas.response(error, "The content-type is not application/json."),
    }


def engine_errors(error: Answer) -> Responses:
    return {
        429: schemas.response(error, "The queue is full; Retry-After says when to come back."),
        500: schemas.response(error, "Something broke; the message has an id to quote."),
        503: schemas.response(error, "The engine is not there, or the server is shutting down."),
    }


def unauthorized(error: Answer) -> dict[str, Any]:
    return schemas.response(error, "No API key, or a wrong one.")
