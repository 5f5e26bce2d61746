"""The path of a request to its deployment: routes, fallback chains, and the router."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from penstock.deployment.local_model import LocalModel
from penstock.deployment.protocol import Call, ServedModel, State
from penstock.deployment.ticket import Ticket
from penstock.errors import ModelNotFound
from penstock.flow import Request
from penstock.flow.routing import Decision, FailedAttempt, RouteRecord
from penstock.gateway.accounting import RequestAccount
from penstock.gateway.context.builder import ContextBuilder
from penstock.gateway.fallback import Attempts, RetryPlan, Target
from penstock.gateway.route_model import RouteModel
from penstock.gateway.router import Router
from penstock.observe import events
from penstock.observe.events import Emit
from penstock.settings import ModelEntry
from penstock.settings.context import ContextSettings

if TYPE_CHECKING:
    from penstock.gateway.safety.safety import Safety  # imports RE2's rules: only with rules

logger = logging.getLogger(__name__)


class ChainLink(msgspec.Struct, frozen=True):
    """A model that stands in for another, and how requests are degraded for it."""

    model: str
    max_tokens: int | None = None


def chain_of(entry: ModelEntry) -> list[ChainLink]:
    return [ChainLink(one) if isinstance(one, str) else ChainLink(one.model, one.max_tokens) for one in entry.fallback]


class Gateway:
    """One per server. Belongs to one event loop."""

    def __init__(
        self,
        router: Router,
        find: Callable[[str], ServedModel],
        chains: Mapping[str, Sequence[ChainLink]] | None = None,
        plan: RetryPlan | None = None,
        *,
        contexts: Mapping[str, ContextSettings] | None = None,
        safety: Safety | None = None,
        emit: Emit | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`chains`: the fallback of models, by name; `contexts`: how their prompts are assembled. `find` raises
        ModelNotFound. `safety`: None without rules."""
        self.router = router
        self.fallbacks: Counter[tuple[str, str, str]] = Counter()  # by model asked for, deployment that failed, code
        self.estimated_usage: Counter[str] = Counter()  # requests without a `usage` that can be true, by model
        self.safety = safety
        self._find = find
        self.chains = dict(chains or {})
        self._plan = plan or RetryPlan()
        self.context_builder = ContextBuilder(find, contexts, emit)
        self.on_helper_end: Callable[[Ticket], None] | None = None  # counts requests of the assembly
        self.reported_circuits: Callable[[], Collection[str]] = tuple  # open ones of other processes of the server
        self._emit = emit
        self._clock, self._sleep, self._draw = clock, sleep, draw

    async def submit(
        self, model: ServedModel, requests: list[Request], account: RequestAccount | None = None
    ) -> Ticket:
        """Raises what is wrong with the requests, or what kept every model that may serve them from doing so. What a
        request may use is reserved with `account` before a deployment gets it."""
        try:
            if self.safety is not None:
                await self.safety.check(requests)
            ticket = await self._submit(model, requests, account)
        except BaseException:
            if account is not None:
                await account.release()
            raise
        ticket.account = account
        if self.safety is not None:
            self.safety.review_answer(ticket, requests[0].tenant)
        return ticket

    def waits_for_others(self, model: ServedModel, requests: Sequence[Request]) -> bool:
        """Whether other requests, other servers, hooks or a load come before these are submitted, so that a client may
        lose patience meanwhile."""
        plain = isinstance(model, LocalModel) and model.state is State.READY and not self.chains.get(model.card.name)
        assembled = any(self.context_builder.concerns(model, request) for request in requests)
        return assembled or not plain or (self.safety is not None and bool(self.safety.rules.hooks))

    async def _submit(self, model: ServedModel, requests: list[Request], account: RequestAccount | None) -> Ticket:
        start = time.monotonic()
        targets, decision = self._targets(model, requests)
        if len(targets) == 1 and decision is None and not model.card.remote:
            return await self._submit_local(model, requests, account)
        name, decided = requests[0].id, time.monotonic()

        def count_failure(failed: FailedAttempt) -> None:
            self._report(attempts.route, name)  # in the order in which they happened
            self._count(model.card.name, name, failed)

        attempts = Attempts(
            targets,
            requests,
            self.router,
            self._plan,
            asked=model,
            decision=decision,
            clock=self._clock,
            sleep=self._sleep,
            draw=self._draw,
            on_failure=count_failure,
            on_recovery=lambda _: self._report(attempts.route, name),
            account=account,
            prepare=partial(self._prepare, account=account),
        )
        if decision is not None:
            attempts.route.spans.append((start, decided))
        ticket = await attempts.submit()
        self._report(attempts.route, name)
        return ticket

    async def _submit_local(
        self, model: ServedModel, requests: list[Request], account: RequestAccount | None
    ) -> Ticket:
        """Without a chain: its replicas take over from each other by themselves."""
        call = await self._prepare(model, requests, account)
        if account is not None:
            await account.reserve(model.card, call)
        ticket = await model.submit(call)
        ticket.model, ticket.call = model, call
        self.router.begin(ticket)
        if call.route.decisions:
            self._report(call.route, requests[0].id)
        return ticket

    async def _prepare(
        self, model: ServedModel, requests: list[Request], account: RequestAccount | None = None
    ) -> Call:
        """Prompts are assembled for the model that gets them: a fallback has another tokenizer and template."""
        if any(self.context_builder.concerns(model, request) for request in requests):
            run = partial(self._run_helper, account=account)
            requests = [await self.context_builder.assemble(model, request, run) for request in requests]
        return await (model.prepare(requests) if self.safety is None else self.safety.prepare(model, requests))

    async def _run_helper(self, model: ServedModel, requests: list[Request], account: RequestAccount | None) -> Ticket:
        """Requests of the assembly to their end, with an account of their own that charges the same key. Raises their
        error."""
        own = None if account is None else account.for_helper(events.http_request_id(requests[0].id))
        ticket = await self.submit(model, requests, own)
        try:
            await ticket.finished()
            if ticket.error is not None:
                raise ticket.error
            if own is not None:
                await own.settle(ticket)
            return ticket
        finally:
            self.finish(ticket)
            if own is not None:
                own.leave(ticket)
            if not ticket.done and ticket.deployment is not None:
                ticket.deployment.cancel(ticket)
            ticket.leave()
            if self.on_helper_end is not None:
                self.on_helper_end(ticket)

    def add(self, entry: ModelEntry, model: ServedModel) -> None:
        """Route to a model that was added at run time."""
        self.chains[entry.name] = chain_of(entry)
        if entry.context_defaults is not None:
            self.context_builder.defaults[entry.name] = entry.context_defaults
        if isinstance(model, LocalModel):
            model.replicas.pick = self.router.pick

    def forget(self, name: str) -> None:
        """A model was removed."""
        self.chains.pop(name, None)
        self.context_builder.defaults.pop(name, None)
        self.router.forget(name)

    def finish(self, ticket: Ticket) -> None:
        """The response is sent, or the client has gone."""
        if ticket.recovery is not None:
            ticket.recovery.close()
            ticket.recovery = None
        self.router.settle(ticket)
        if ticket.model is not None and any(active.usage_estimated for active in ticket.active_requests):
            self.estimated_usage[ticket.model.card.name] += 1

    def _targets(self, model: ServedModel, requests: Sequence[Request]) -> tuple[list[Target], Decision | None]:
        if isinstance(model, RouteModel):
            models, decision = model.rank(requests)
            return [Target(one) for one in models], decision
        targets = [Target(model)]
        for link in self.chains.get(model.card.name, ()):
            try:
                targets.append(Target(self._find(link.model), link.max_tokens))
            except ModelNotFound:
                logger.warning("fallback of %s: there is no model %s", model.card.name, link.model)
        return targets, None

    def _count(self, model: str, request: str, failed: FailedAttempt) -> None:
        self.fallbacks[model, failed.name, failed.code] += 1
        if self._emit is not None:
            name = events.http_request_id(request)
            self._emit(events.AttemptFailed(name, time.monotonic(), failed.name, failed.code, failed.message))

    def _report(self, route: RouteRecord, request: str) -> None:
        """Tell the journal what was decided since the last time."""
        if self._emit is not None and (new := route.decisions[route.reported :]):
            route.reported = len(route.decisions)
            name = events.http_request_id(request)
            self._emit(events.Routed(name, time.monotonic(), new))
            for start, end in route.spans:
                self._emit(events.GatewayWork(name, end, start, "route"))
            route.spans = []
