"""GET /v1/models, in the format of the API that the client speaks: OpenAI's and Anthropic's have the same path."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from penstock.gateway.keys.identity import Scope
from penstock.http.api import model_card
from penstock.http.api.anthropic import models as anthropic
from penstock.http.api.anthropic.error_body import VERSION_HEADER, AnthropicErrorBody
from penstock.http.error_body import ErrorBody
from penstock.http.json_response import json_response
from penstock.http.middleware.tenants import identity_of
from penstock.http.openapi.route_docs import route_docs
from penstock.http.parse.query import read_query
from penstock.http.routing import App
from penstock.http.service import Service

ERROR = ErrorBody | AnthropicErrorBody


def add(app: App, service: Service) -> None:
    any_key = app.requiring(*Scope)
    listed = model_card.ModelList | anthropic.AnthropicModelList
    one = model_card.Model | anthropic.AnthropicModel

    @any_key.get("/v1/models", **route_docs(None, listed, error=ERROR, not_found=None, may_reject=True))
    async def list_models(request: Request) -> Response:
        """The models of this server that the API key may use. With the header `anthropic-version` in Anthropic's
        format, in pages by `limit`, `after_id` and `before_id`."""
        models = service.models_of(identity_of(request.scope))
        if _is_anthropic(request):
            query = read_query(request, anthropic.PAGE)
            return json_response(anthropic.encode_page([anthropic.describe(model) for model in models], **query))
        return json_response(model_card.encode_models([model_card.describe(model) for model in models]))

    @any_key.get("/v1/models/{model_id:path}", **route_docs(None, one, error=ERROR, may_reject=True))
    async def retrieve_model(model_id: str, request: Request) -> Response:
        """One model. With the header `anthropic-version` in Anthropic's format."""
        model = service.models_of(identity_of(request.scope)).find(model_id)
        if _is_anthropic(request):
            read_query(request, (anthropic.BETA,))
            return json_response(anthropic.encode_model(anthropic.describe(model)))
        return json_response(model_card.encode_model(model_card.describe(model)))


def _is_anthropic(request: Request) -> bool:
    return VERSION_HEADER in request.headers
