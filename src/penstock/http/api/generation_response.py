"""The response to a generation request: one body, or a stream."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import Response

from penstock.deployment.ticket import Ticket
from penstock.http.response_store import NewResponse
from penstock.http.service import Service
from penstock.http.streaming import SERVER_SENT_EVENTS, EventStream, FullResponse, Writer, name_model
from penstock.stream.active_request import ActiveRequest


def generation_response(
    service: Service,
    ticket: Ticket,
    writer: Writer,
    *,
    stream: bool | None,
    content_type: str = SERVER_SENT_EVENTS,
    stored: NewResponse | None = None,
) -> Response:
    """`content_type` is that of a stream; `stored` gets what the writer notes."""
    if stream:
        return EventStream(service, ticket, writer, content_type=content_type, stored=stored)

    def write(active_requests: Sequence[ActiveRequest]) -> bytes:
        name_model(writer, ticket)
        return writer.full_response([active.completion() for active in active_requests])

    return FullResponse(service, ticket, write, stored)
