"""The sampling lab's route."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from penstock import flow
from penstock.gateway.keys.identity import Scope
from penstock.http.api.client_field_names import client_field_names
from penstock.http.api.response_format import CLIENT_NAMES
from penstock.http.debug import route_docs, sampling_lab
from penstock.http.parse.body import read_body
from penstock.http.request_events import RequestEvents
from penstock.http.routing import App
from penstock.http.service import Service
from penstock.http.streaming import FullResponse
from penstock.observe.trace.records import LAB
from penstock.stream.active_request import ActiveRequest


def add(app: App, service: Service) -> None:
    inference = app.requiring(Scope.INFERENCE)

    @inference.post("/observe/lab", **route_docs.LABORATORY.docs)
    async def laboratory(request: Request) -> Response:
        """One forward pass on a prompt, and every stage of sampling its next token."""
        route_docs.LABORATORY.read_query(request)
        with RequestEvents(request.scope, LAB, service.emit) as events:
            body = await read_body(sampling_lab.LabRequest, request)
            events.parsed(model=body.model)
            model = service.models_of(events.identity).find_local(body.model)
            with client_field_names(CLIENT_NAMES):
                params = sampling_lab.sampling_params(body)
                forced = body.forced or []
                tokens = await asyncio.to_thread(model.prompt_tokens, body.to_request("", params))
                inspection = flow.Request(
                    id=events.name,
                    params=params,
                    tokens=[*tokens, *forced],
                    forced=len(forced),
                    inspect=body.top or sampling_lab.DEFAULT_TOP,
                )
                events.validated([inspection])
                ticket = await service.submit(model, [inspection], events.identity, request.receive)

            def write(active_requests: Sequence[ActiveRequest]) -> bytes:
                return sampling_lab.encode_inspection(
                    body, active_requests, model.tokenizer, model.files.spec.vocab_size
                )

            return FullResponse(service, ticket, write)
