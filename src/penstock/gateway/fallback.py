"""One client's request over several attempts: the model it asked for, then those of its chain.

    attempt ──fails before the first output──► next model of the chain ──…──► all failed: a pause, another round

A retry sends the parsed request again. Nothing is retried once the client may have seen output. If another
attempt cannot help (an invalid field), the failure is the answer. All attempts together have a deadline.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.deployment.protocol import Call, ServedModel
from penstock.deployment.ticket import Ticket
from penstock.errors import InvalidRequest, OutOfMemory, PenstockError, RateLimited, UpstreamTimeout
from penstock.flow import Request, SamplingParams
from penstock.flow.routing import Decision, FailedAttempt, RouteRecord
from penstock.gateway.accounting import RequestAccount
from penstock.gateway.backoff import delay_s
from penstock.gateway.router import RETRYABLE, Router

logger = logging.getLogger(__name__)

_DEFAULTS = SamplingParams()
_NOT_TAKEN = (*RETRYABLE, OutOfMemory)  # errors of a model that cannot take a request: it may not fit beside others


class Target(msgspec.Struct, frozen=True):
    """A model of a chain, and how a request is degraded for it."""

    model: ServedModel
    max_tokens: int | None = None  # shorten the output to so many


class RetryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how often to try."""

    deadline_s: float | None = 60.0  # to the first output, over all attempts; None: no limit
    first_token_s: float | None = None  # of one attempt, while there is another model to try
    rounds: int = 2  # repetitions of the whole chain


class Attempts:
    """The attempts of one request. `submit` makes the first that is accepted; the ticket calls `recover` if that fails
    before the client has seen anything of it."""

    def __init__(
        self,
        targets: Sequence[Target],
        requests: list[Request],
        router: Router,
        plan: RetryPlan,
        *,
        asked: ServedModel,
        decision: Decision | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        draw: Callable[[], float] = random.random,
        on_failure: Callable[[FailedAttempt], None] | None = None,
        on_recovery: Callable[[Ticket], None] | None = None,
        account: RequestAccount | None = None,
        prepare: Callable[[ServedModel, list[Request]], Awaitable[Call]] | None = None,
    ) -> None:
        """`asked`: what the client named. `decision`: how the order of the targets was chosen, if it was. `prepare`:
        instead of the model's own."""
        self.route = RouteRecord([] if decision is None else [decision], asked=asked.card.name)
        self._asked = asked
        self._targets = list(targets)
        self._chosen = decision is not None
        self._requests = requests
        self._router = router
        self._plan = plan
        self._clock = clock
        self._sleep = sleep
        self._draw = draw
        self._on_failure = on_failure
        self._on_recovery = on_recovery
        self._prepare = prepare or _prepare
        self._account = account  # where each attempt reserves what it may use
        self._deadline = None if plan.deadline_s is None else clock() + plan.deadline_s
        self._round = 0
        self._next = 0  # target of this round
        self._unfit: set[int] = set()  # targets that cannot serve the request at all
        self._error: PenstockError | None = None  # of the first attempt: what the client is told if all fail
        self._pause_s: float | None = None  # the shortest that a target asked for in this round
        self._timer: asyncio.TimerHandle | None = None

    async def submit(self) -> Ticket:
        """The first attempt that a deployment accepts. Raises if none does."""
        ticket = await self._submit_next()
        self._watch(ticket)
        return ticket

    async def _submit_next(self) -> Ticket:
        while (place := await self._choose()) is not None:
            target = self._targets[place]
            try:
                ticket = await self._try(target)
            except (InvalidRequest, RateLimited) as error:
                if place == 0 and not self._chosen:
                    raise
                self._unfit.add(place)  # another model may be able to serve it, or cost less
                self._note(target.model.card.name, error)
            except _NOT_TAKEN as error:
                self._note(target.model.card.name, error)
            else:
                return ticket
        raise self._failure()

    async def recover(self, ticket: Ticket) -> bool:
        """The ticket has failed, and its client has seen nothing: give it to the next target."""
        self.close()
        error, deployment = ticket.error, ticket.deployment
        if not isinstance(error, RETRYABLE) or deployment is None:
            return False
        self._note(deployment.name, error)
        self._router.settle(ticket)
        abandoned = ticket.detach()
        if not abandoned.done:
            deployment.cancel(abandoned)
        try:
            fresh = await self._submit_next()
        except PenstockError as failure:
            ticket.error = failure
            return False
        ticket.adopt(fresh)
        self._watch(ticket)
        if self._on_recovery is not None:
            self._on_recovery(ticket)
        return True

    async def _try(self, target: Target) -> Ticket:
        """One attempt. Raises what keeps the target from taking it."""
        if (error := self._router.open_circuit(target.model)) is not None:
            raise error
        requests = self._requests
        if target.model is not self._asked:
            sampling = self._asked.sampling, target.model.sampling
            requests = [replace(request, params=resampled(request.params, *sampling)) for request in requests]
        if target.max_tokens is not None:
            requests = [_shortened(request, target.max_tokens) for request in requests]
        if self._error is not None:
            warning, suffix = _degraded(self._targets[0], target, self._error), f"-r{len(self.route.failures)}"
            requests = [
                # Another id: a deployment may not have let go of the sequences of an attempt before.
                replace(request, id=request.id + suffix, warnings=(*request.warnings, warning))
                for request in requests
            ]
        call = await self._prepare(target.model, requests)
        call.route = self.route
        if self._account is not None:
            await self._account.reserve(target.model.card, call)
        ticket = await self._submit(target.model, call)
        ticket.model, ticket.call, ticket.recovery = target.model, call, self
        self._router.begin(ticket)
        return ticket

    async def _submit(self, model: ServedModel, call: Call) -> Ticket:
        """Waits while the model is loaded, as long as there is time: the load goes on without the request."""
        limit_s = self._limit_s()
        try:
            async with asyncio.timeout(limit_s):
                return await model.submit(call)
        except TimeoutError:
            raise UpstreamTimeout(f"{model.card.name} was not ready within {limit_s:g} s") from None
        except RETRYABLE as error:
            if len(model.deployments) == 1:  # else it is not known which of them it was
                self._router.fail(model.deployments[0].name, error)
            raise

    async def _choose(self) -> int | None:
        """The next target; pauses between rounds. None: there is no time, or no target, left."""
        while True:
            if self._deadline is not None and self._clock() >= self._deadline:
                return None
            while self._next < len(self._targets):
                place, self._next = self._next, self._next + 1
                if place not in self._unfit:
                    return place
            self._round += 1
            delay = delay_s(self._round, self._pause_s, self._draw)
            late = self._deadline is not None and self._clock() + delay >= self._deadline
            if self._round > self._plan.rounds or late or len(self._unfit) == len(self._targets):
                return None
            await self._sleep(delay)
            self._next, self._pause_s = 0, None

    def _note(self, name: str, error: PenstockError) -> None:
        failed = FailedAttempt(name, error.code, error.message)
        self.route.failures.append(failed)
        self._error = self._error or error
        if (wait := error.retry_after_s) is not None:
            self._pause_s = wait if self._pause_s is None else min(wait, self._pause_s)
        logger.info("request %s: %s failed: %s", self._requests[0].id, name, error.message)
        if self._on_failure is not None:
            self._on_failure(failed)

    def _failure(self) -> PenstockError:
        if self._error is None:
            return UpstreamTimeout(f"no model was tried within {self._plan.deadline_s:g} s")
        if len(self.route.failures) > 1:
            others = ", ".join(dict.fromkeys(f"{one.name} ({one.code})" for one in self.route.failures[1:]))
            self._error.message = f"{self._error.message}; then failed: {others}"
        return self._error

    # --- time limits of an attempt

    def _limit_s(self) -> float | None:
        """Of the attempt to its first output. Only the deadline counts when there is nothing else to try."""
        last = all(place in self._unfit for place in range(self._next, len(self._targets)))
        limits = [] if last or self._plan.first_token_s is None else [self._plan.first_token_s]
        if self._deadline is not None:
            limits.append(max(self._deadline - self._clock(), 0.0))
        return min(limits, default=None)

    def _watch(self, ticket: Ticket) -> None:
        """End the attempt if it has no output in time."""
        if (limit_s := self._limit_s()) is not None:
            self._timer = asyncio.get_running_loop().call_later(limit_s, self._expire, ticket, limit_s)

    def close(self) -> None:
        """There is output, or the client has disconnected."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self, ticket: Ticket, limit_s: float) -> None:
        if not ticket.has_output and ticket.deployment is not None:
            ticket.fail(UpstreamTimeout(f"{ticket.deployment.name} gave no output within {limit_s:g} s"))


def _prepare(model: ServedModel, requests: list[Request]) -> Awaitable[Call]:
    return model.prepare(requests)


def resampled(params: SamplingParams, before: Mapping[str, Any], after: Mapping[str, Any]) -> SamplingParams:
    """Parameters that one model recommends become those of another; what the client set itself stays. A value that the
    client set to what was recommended anyway counts as recommended."""
    changes = {}
    for name in {*before, *after}:
        default = getattr(_DEFAULTS, name)
        if getattr(params, name) == before.get(name, default):
            changes[name] = after.get(name, default)
    return replace(params, **changes)


def _shortened(request: Request, max_tokens: int) -> Request:
    asked = request.params.max_tokens
    limit = max_tokens if asked is None else min(asked, max_tokens)
    least = min(request.params.min_tokens, limit)
    return replace(request, params=replace(request.params, max_tokens=limit, min_tokens=least))


def _degraded(first: Target, target: Target, error: PenstockError) -> str:
    """The warning for the client if the answer is not from the first attempt."""
    shorter = f", at most {target.max_tokens} tokens" if target.max_tokens is not None else ""
    return f"answered by {target.model.card.name} after {first.model.card.name} failed ({error.code}){shorter}"
