"""Models that serve the assembly of a prompt: they write summaries and rank documents, at the cost of the request."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable

from penstock.deployment.protocol import ServedModel
from penstock.deployment.ticket import Ticket
from penstock.errors import InvalidRequest, ModelNotFound, PenstockError
from penstock.flow import Request, SamplingParams
from penstock.flow.context import HelperCall, HelperKind
from penstock.observe import events

# Runs requests on a model to their end, charged to the client's request. Raises their error.
Run = Callable[[ServedModel, list[Request]], Awaitable[Ticket]]


class HelperModels:
    """Those of one request. `calls` is what they were asked."""

    def __init__(self, find: Callable[[str], ServedModel], run: Run, answering: ServedModel, request: Request) -> None:
        """`answering`: the model of the request itself, where it names no other. `find` raises ModelNotFound."""
        self._find, self._run = find, run
        self._answering = answering
        self._request = request
        self.calls: list[HelperCall] = []

    def find(self, name: str | None, field: str) -> ServedModel:
        if name is None:
            return self._answering
        try:
            return self._find(name)
        except ModelNotFound as error:
            raise renamed(error, field) from None

    def request_id(self, kind: HelperKind) -> str:
        """Names the client's request, as the ledger shows it. Unique: a fallback assembles the prompt again."""
        return f"{events.http_request_id(self._request.id)}.{kind}.{uuid.uuid4().hex[:8]}"

    async def ask(self, kind: HelperKind, model: ServedModel, requests: list[Request], field: str) -> Ticket:
        """`field` named the model, and gets its errors."""
        try:
            ticket = await self._run(model, requests)
        except InvalidRequest as error:
            raise renamed(error, field) from None
        answered = ticket.active_requests
        self.calls.append(
            HelperCall(
                kind=kind,
                model=(ticket.model or model).card.name,
                requests=len(answered),
                prompt_tokens=sum(len(one.submits[0].tokens) for one in answered),
                cached_tokens=sum(one.cached_tokens for one in answered),
                output_tokens=sum(choice.output_tokens for one in answered for choice in one.choices),
                cost_usd=answered[0].cost_usd,
            )
        )
        return ticket


def owned_request(request: Request, request_id: str) -> Request:
    """Without a prompt, in the queue of the same owner and with the same priority."""
    return Request(
        id=request_id,
        params=SamplingParams(),
        tenant=request.tenant,
        tier=request.tier,
        weight=request.weight,
        priority=request.priority,
        background=request.background,
    )


def renamed(error: PenstockError, field: str) -> PenstockError:
    """The error of a model that the client named in another field than `model`."""
    return type(error)(f"{field}: {error.message}", param=field)
