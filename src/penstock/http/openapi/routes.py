"""What FastAPI is told of the routes, for the OpenAPI document: it neither parses nor writes their bodies itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import Response
from pydantic import BaseModel
from starlette.requests import Request

from penstock.http.error_body import ErrorBody
from penstock.http.openapi import schemas
from penstock.http.parse.query import Parameter, read_query


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
    streamed: Sequence[type[msgspec.Struct]] = (),
    lines: type[msgspec.Struct] | None = None,
    computed: bool = False,
    error: type[msgspec.Struct] = ErrorBody,
    missing: str | None = "No such model.",
    choosy: bool = False,
    parameters: Sequence[Parameter] = (),
) -> dict[str, Any]:
    """Of a route that answers clients. `computed`: by the engine, as are `chunk`, `events` and `lines`; `streamed` are
    events that are there already. `choosy`: though it takes no body, there are requests that it refuses."""
    given = schemas.response(answer, "The answer.", chunk=chunk, events=events or streamed, lines=lines)
    described: dict[int | str, Any] = {200: given}
    described[401] = _no_key(error)
    if missing is not None:
        described[404] = schemas.response(error, missing)
    if request is not None or choosy:
        described[400] = schemas.response(error, "A field is wrong; the message names it.")
    if request is not None:
        described |= _of_bodies(error)
    if computed or chunk is not None or events or lines is not None:
        described |= _of_queues(error)
    extra = schemas.request_body(request) if request is not None else {}
    if parameters:
        extra["parameters"] = [parameter.described() for parameter in parameters]
    return {"responses": described, "openapi_extra": extra, "response_class": Response}


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A route that shows what happens inside."""

    about: str
    members: Mapping[str, str]  # of the answer, an object: what each of them is. There may be more
    parameters: tuple[Parameter, ...] = ()
    body: type[BaseModel] | None = None
    missing: str | None = None  # what may not be there
    asks_engine: bool = False
    queues: bool = False  # as requests do
    events: tuple[str, ...] = ()  # it answers with these instead; the last has the members

    def query(self, request: Request) -> dict[str, Any]:
        """The parameters. Raises InvalidRequest."""
        return read_query(request, self.parameters)

    @property
    def described(self) -> dict[str, Any]:
        described: dict[int | str, Any] = {
            200: {"description": self.about, "content": self._content()},
            400: schemas.response(ErrorBody, "A field or parameter is wrong; the message names it."),
            401: _no_key(ErrorBody),
        }
        if self.missing is not None:
            described[404] = schemas.response(ErrorBody, self.missing)
        if self.body is not None:
            described |= _of_bodies(ErrorBody)
        if self.queues:
            described |= _of_queues(ErrorBody)
        elif self.asks_engine:
            described[503] = schemas.response(ErrorBody, "The engine is not there, or does not answer.")
        extra = schemas.request_body(self.body) if self.body is not None else {}
        if self.parameters:
            extra["parameters"] = [parameter.described() for parameter in self.parameters]
        return {"responses": described, "openapi_extra": extra, "response_class": Response}

    def _content(self) -> dict[str, Any]:
        members = {name: {"description": text} for name, text in self.members.items()}
        answer: dict[str, Any] = {"type": "object", "properties": members, "required": list(members)}
        if not self.events:
            return {"application/json": {"schema": answer}}
        data = {"type": "string", "contentMediaType": "application/json", "contentSchema": answer}
        event = {"type": "object", "properties": {"event": {"enum": list(self.events)}, "data": data}}
        return {"text/event-stream": {"schema": event}}


def _of_bodies(error: type[msgspec.Struct]) -> dict[int | str, Any]:
    return {
        413: schemas.response(error, "The body is too large."),
        415: schemas.response(error, "The content-type is not application/json."),
    }


def _of_queues(error: type[msgspec.Struct]) -> dict[int | str, Any]:
    return {
        429: schemas.response(error, "The queue is full; Retry-After says when to come back."),
        500: schemas.response(error, "Something broke; the message has an id to quote."),
        503: schemas.response(error, "The engine is not there, or the server is shutting down."),
    }


def _no_key(error: type[msgspec.Struct]) -> dict[str, Any]:
    return schemas.response(error, "No API key, or a wrong one.")
