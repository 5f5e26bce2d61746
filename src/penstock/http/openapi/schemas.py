"""JSON Schema of the bodies for /openapi.json: from pydantic schemas of requests and msgspec structs of answers."""

from __future__ import annotations

from collections.abc import Sequence
from types import UnionType
from typing import Any, get_args

import msgspec
from msgspec import Struct
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from penstock.http.error_body import ErrorBody
from penstock.http.parse.schema import build

Answer = type[Struct] | UnionType  # or one of several

_REF = "#/components/schemas/"


def request_body(schema: type[BaseModel] | type[Struct]) -> dict[str, Any]:
    """For a route's `openapi_extra`."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _ref(schema)}}}}


def response(
    answer: Answer,
    description: str,
    *,
    chunk: type[Struct] | None = None,
    events: Sequence[type[Struct]] = (),
    lines: type[Struct] | None = None,
) -> dict[str, Any]:
    """For one status of a route's `responses`. A streamed answer has `chunk` as the data of its events, named `events`
    (their tags are the names), or `lines` of NDJSON."""
    content: dict[str, Any] = {"application/json": {"schema": _ref(answer)}}
    if chunk is not None:
        content["text/event-stream"] = {"schema": _event(chunk)}
    elif events:
        content["text/event-stream"] = {"schema": _named_event(events)}
    elif lines is not None:
        content["application/x-ndjson"] = {"schema": _ref(lines)}
    return {"description": description, "content": content}


def components(requests: Sequence[type[BaseModel]], answers: Sequence[type[Struct]]) -> dict[str, Any]:
    """The document's `components.schemas`, to which the two functions above refer."""
    for schema in requests:
        build(schema)
    _, by_pydantic = models_json_schema([(schema, "validation") for schema in requests], ref_template=_REF + "{model}")
    _, by_msgspec = msgspec.json.schema_components(answers, ref_template=_REF + "{name}")
    return {**by_pydantic["$defs"], **by_msgspec}


def _named_event(events: Sequence[type[Struct]]) -> dict[str, Any]:
    data = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [_ref(event) for event in events]},
    }
    name = {"enum": [event.__struct_config__.tag for event in events]}
    return {"type": "object", "properties": {"event": name, "data": data}, "required": ["event", "data"]}


def _event(chunk: type[Struct]) -> dict[str, Any]:
    data = {
        "type": "string",
        "description": "A chunk, or the error that ends the stream.",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [_ref(chunk), _ref(ErrorBody)]},
    }
    end = {"const": "[DONE]", "description": "The last event of a stream that is whole."}
    return {"type": "object", "properties": {"data": {"anyOf": [data, end]}}, "required": ["data"]}


def _ref(schema: type[BaseModel] | Answer) -> dict[str, Any]:
    if isinstance(schema, UnionType):
        return {"anyOf": [_ref(one) for one in get_args(schema)]}
    return {"$ref": _REF + schema.__name__}
