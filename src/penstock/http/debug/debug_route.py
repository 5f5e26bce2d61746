"""The description of a debug route: what its parameters are checked by, and what /openapi.json says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request

from penstock.http.error_body import ErrorBody
from penstock.http.openapi import route_docs, schemas
from penstock.http.parse.query import Parameter, read_query
from penstock.http.routing import Responses


@dataclass(frozen=True, slots=True, kw_only=True)
class DebugRoute:
    description: str
    members: Mapping[str, str]  # of the answer, an object: the description of each. There may be more
    parameters: tuple[Parameter, ...] = ()
    body: type[BaseModel] | None = None
    not_found: str | None = None  # what may not be there
    asks_engine: bool = False
    generates: bool = False  # queues for the engine as generation requests do
    events: tuple[str, ...] = ()  # streams these instead; the last has the members

    def read_query(self, request: Request) -> dict[str, Any]:
        """The parameters. Raises InvalidRequest."""
        return read_query(request, self.parameters)

    @property
    def docs(self) -> dict[str, Any]:
        """Keyword arguments for `app.get` and `app.post`."""
        responses: Responses = {
            200: {"description": self.description, "content": self._content()},
            400: schemas.response(ErrorBody, "A field or parameter is wrong; the message names it."),
            401: route_docs.unauthorized(ErrorBody),
        }
        if self.not_found is not None:
            responses[404] = schemas.response(ErrorBody, self.not_found)
        if self.body is not None:
            responses |= route_docs.body_errors(ErrorBody)
        if self.generates:
            responses |= route_docs.engine_errors(ErrorBody)
        elif self.asks_engine:
            responses[503] = schemas.response(ErrorBody, "The engine is not there, or does not answer.")
        return route_docs.route_arguments(responses, self.body, self.parameters)

    def _content(self) -> dict[str, Any]:
        members = {name: {"description": text} for name, text in self.members.items()}
        answer: dict[str, Any] = {"type": "object", "properties": members, "required": list(members)}
        if not self.events:
            return {"application/json": {"schema": answer}}
        data = {"type": "string", "contentMediaType": "application/json", "contentSchema": answer}
        event = {"type": "object", "properties": {"event": {"enum": list(self.events)}, "data": data}}
        return {"text/event-stream": {"schema": event}}
