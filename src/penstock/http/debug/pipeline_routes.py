"""The stages of the pipeline, as the front page of the web interface shows them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from penstock.gateway.keys.identity import Scope
from penstock.http.debug import route_docs
from penstock.http.json_response import encode_response
from penstock.http.routing import App
from penstock.http.service import Service
from penstock.observe.observer import Observer
from penstock.observe.pipeline_stages import PipelineStages
from penstock.settings import Settings


def add(app: App, service: Service, observer: Observer, settings: Settings) -> None:
    observe = app.requiring(Scope.OBSERVE)
    pipeline = PipelineStages(observer.journal)

    @observe.get("/observe/pipeline", **route_docs.PIPELINE.docs)
    async def stages(request: Request) -> Response:
        """Each stage of the pipeline: requests in it now, and its times of late."""
        query = route_docs.PIPELINE.read_query(request)
        accounting = service.accounting
        speculates = any(model.replicas.facts.get("speculation", "off") != "off" for model in service.models.local)
        active = {
            "auth": settings.needs_key,
            "limits": accounting.limiter is not None,
            "ledger": accounting.ledger is not None,
            "speculate": speculates,
        }
        return encode_response({**await pipeline.read(query["seconds"]), "active": active})
