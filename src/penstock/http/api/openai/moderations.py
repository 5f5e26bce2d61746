"""POST /v1/moderations: which safety rules texts match. The categories are the names of the rules."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import ConfigDict, Discriminator, Field, Tag
from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import NotFound
from penstock.gateway.keys.identity import Scope
from penstock.http.api.chat_messages import TextPart
from penstock.http.api.fields import StrictModel
from penstock.http.api.response_bodies import Body
from penstock.http.json_response import json_response
from penstock.http.openapi.route_docs import route_docs
from penstock.http.parse.body import read_body
from penstock.http.parse.unions import BRANCH
from penstock.http.request_events import RequestEvents
from penstock.http.routing import App
from penstock.http.service import Service

MODEL_NAME = "safety-rules"
MAX_TEXTS = 2048

_STRING, _STRINGS, _PARTS = (BRANCH + name for name in ("string", "strings", "parts"))


def _shape(value: Any) -> str | None:
    if isinstance(value, str):
        return _STRING
    if not isinstance(value, list):
        return None
    return _PARTS if value and isinstance(value[0], dict) else _STRINGS


_LIST = Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)
Texts = Annotated[
    Annotated[str, Tag(_STRING)]
    | Annotated[list[str], _LIST, Tag(_STRINGS)]
    | Annotated[list[TextPart], _LIST, Tag(_PARTS)],
    Discriminator(
        _shape,
        custom_error_type="shape",
        custom_error_message="a string, a list of strings or a list of parts of type text",
    ),
]


class ModerationRequest(StrictModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"input": "Is this allowed?"}]})

    input: Texts = Field(description="A text, a list of texts, or a list of parts of type `text`, which are one text.")
    model: str | None = Field(None, description="Without effect: the rules of the server judge, not a model.")


class ModerationResult(Body, kw_only=True, frozen=True):
    flagged: bool
    categories: dict[str, bool]  # by rule
    category_scores: dict[str, float]  # 1: it matches
    category_applied_input_types: dict[str, list[str]]


class ModerationList(Body, kw_only=True, frozen=True):
    id: str
    model: str
    results: list[ModerationResult]


REQUEST = ModerationRequest
RESPONSE = ModerationList


def add(app: App, service: Service) -> None:
    docs = route_docs(REQUEST, RESPONSE, uses_engine=True, not_found="The server has no safety rules.")

    @app.requiring(Scope.INFERENCE).post("/v1/moderations", **docs)
    async def moderate(request: Request) -> Response:
        """Check texts against the safety rules."""
        safety = service.gateway.safety
        with RequestEvents(request.scope, "moderation", service.emit) as events:
            body = await read_body(REQUEST, request)
            events.parsed(model=body.model)
            if safety is None:
                raise NotFound("this server has no safety rules: see [[safety]] in docs/SAFETY.md")
            found = await safety.moderate(_texts(body), events.identity.tenant, events.name)
            events.answered()
        results = [_result(categories) for categories in found]
        return json_response(
            msgspec.json.encode(ModerationList(id=f"modr-{events.name}", model=MODEL_NAME, results=results))
        )


def _texts(body: ModerationRequest) -> list[str]:
    if isinstance(body.input, str):
        return [body.input]
    if isinstance(body.input[0], str):
        return [text for text in body.input if isinstance(text, str)]
    return ["\n".join(part.text for part in body.input if isinstance(part, TextPart))]


def _result(categories: dict[str, bool]) -> ModerationResult:
    return ModerationResult(
        flagged=any(categories.values()),
        categories=categories,
        category_scores={name: float(flagged) for name, flagged in categories.items()},
        category_applied_input_types={name: ["text"] for name in categories},
    )
