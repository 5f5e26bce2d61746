"""The account of each request: limits are reserved before it is dispatched and settled at its end, and its usage is in
the ledger before the client gets the end of its answer.

    prepare ─► reserve ─► dispatch ─► … ─► measure ─► ledger ─► settle ─► terminal event

What a request is charged:

| it ended | input | output |
|---|---|---|
| with its answer, by whatever finish reason | all | all |
| because its client disconnected or did not read | prompts whose computation had begun | what had reached the server |
| in an error, and part of its stream was sent | prompts whose computation had begun | what had reached the server |
| in an error before that | nothing | nothing |
| as a line of a batch, without an answer | nothing | nothing |

Failed attempts of a fallback, and those of a replica that died, are not charged: the attempt that answered is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from penstock.deployment.protocol import Call, ModelCard
from penstock.deployment.ticket import Ticket
from penstock.errors import InvalidRequest, LedgerUnavailable
from penstock.flow import FinishReason, Timings
from penstock.gateway.keys.identity import Identity, Limits
from penstock.gateway.ledger.cost import microusd, saved_microusd
from penstock.gateway.ledger.ledger import Ledger
from penstock.gateway.ledger.record import UsageRecord
from penstock.gateway.ledger.totals import UsageTotals
from penstock.gateway.limits.limiter import Limiter
from penstock.gateway.limits.reservation import Charge, Reservation
from penstock.observe import events
from penstock.observe.events import Emit
from penstock.observe.slo.spend import MINUTE_S, PAST_MINUTES, SpendRates
from penstock.stream.active_request import ActiveRequest

PAST_S = MINUTE_S * PAST_MINUTES  # that the spend rate is compared with
_UNFINISHED = (None, FinishReason.CANCELLED, FinishReason.ERROR)


class Accounting:
    """One per server. Belongs to one event loop."""

    def __init__(
        self,
        ledger: Ledger | None = None,
        limiter: Limiter | None = None,
        *,
        fail_open: bool = False,
        emit: Emit | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`fail_open`: answers go out also while the ledger cannot be written."""
        self.ledger = ledger
        self.limiter = limiter
        self.fail_open = fail_open
        self.totals = UsageTotals()
        self.emit = emit
        self.clock = clock
        self.spend = SpendRates(clock)
        self._tasks: set[asyncio.Task[None]] = set()  # of requests whose clients do not wait

    def open(self, identity: Identity, request: str, line: str | None = None) -> RequestAccount:
        """For a request that is about to be dispatched. `line`: of which batch it is, and which of it."""
        return RequestAccount(self, identity, request, line)

    @property
    def accepts_requests(self) -> bool:
        """Whether limits can be checked and usage recorded, or requests are let through without."""
        return self.fail_open or all(one is None or one.available for one in (self.limiter, self.ledger))

    def stores(self) -> dict[str, str]:
        """The state of limits and ledger, which requests need besides the engine, as `/ready` shows it."""
        stores = {"limits": self.limiter, "ledger": self.ledger}
        return {
            name: "available" if store.available else "unavailable"
            for name, store in stores.items()
            if store is not None
        }

    @property
    def durable(self) -> bool:
        """Whether usage is recorded before clients get the end of their answers."""
        return self.ledger is not None

    def check_available(self) -> None:
        """Raises LedgerUnavailable if an answer could not be delivered for lack of its record."""
        if self.ledger is not None and not self.ledger.available and not self.fail_open:
            raise LedgerUnavailable("the usage of requests cannot be recorded at the moment: try again soon")

    async def write(self, record: UsageRecord, *, awaited: bool) -> None:
        """`awaited`: a client waits. Raises LedgerUnavailable if it must not get its answer."""
        if self.ledger is not None:
            try:
                await self.ledger.write(record)
            except LedgerUnavailable:
                if awaited and not self.fail_open:
                    raise
                self.ledger.keep(record)
        self.totals.add(record)
        self.spend.add(record.tenant, record.microusd)

    async def reserve(self, identity: Identity, request: str, charge: Charge, model: str) -> Reservation:
        """With the limiter, which there is. `model`: that is asked for."""
        assert self.limiter is not None
        return await self.limiter.reserve(identity, request, charge)

    async def complete(
        self, record: UsageRecord, held: Reservation | None, *, awaited: bool, request: str | None = None
    ) -> None:
        """Write the record of a request that has ended, then settle what it has reserved. `request`: its id, if the
        record has another name."""
        try:
            await self.write(record, awaited=awaited)
        finally:
            if held is not None and self.limiter is not None:
                await self.limiter.settle(held, Charge(record.tokens, record.microusd))

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """In the background; `close` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def start(self) -> None:
        """Before the first request. Raises LedgerUnavailable or LimitsUnavailable."""
        if self.ledger is not None:
            self.spend.restore(await self.ledger.spend_by_minute(self.clock() - PAST_S))
        if self.limiter is not None:
            await self.limiter.start(self.ledger)

    async def close(self) -> None:
        """All requests have ended: write what is left."""
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.limiter is not None:
            await self.limiter.close()
        if self.ledger is not None:
            await self.ledger.close()


class RequestAccount:
    """Of one client's request, over all its attempts."""

    __slots__ = (
        "_accounting", "_identity", "_line", "_output", "_parent", "_request", "_reservation", "_settling", "_start",
        "first_output", "helpers_microusd", "record",
    )  # fmt: skip

    def __init__(
        self,
        accounting: Accounting,
        identity: Identity,
        request: str,
        line: str | None,
        parent: RequestAccount | None = None,
    ) -> None:
        """`parent`: of the request that this one serves."""
        self._accounting = accounting
        self._parent = parent
        self.helpers_microusd = 0  # what requests cost that served this one
        self._identity = identity
        self._request = request
        self._line = line
        self._reservation: Reservation | None = None
        self._settling = False
        self._output: int | None = None  # tokens that the client was given before it left
        self._start = time.monotonic()
        self.first_output: float | None = None  # when the stream's first output was there
        self.record: UsageRecord | None = None  # once it is measured

    @property
    def durable(self) -> bool:
        return self._accounting.durable

    def for_helper(self, request: str) -> RequestAccount:
        """Of a request that serves this one, such as a summary of its history: a record of its own for the same key.
        Its cost is part of this one's, as the client sees it."""
        return RequestAccount(self._accounting, self._identity, request, None, self)

    # --- before

    async def reserve(self, card: ModelCard, call: Call) -> None:
        """What an attempt may use at most. Another attempt keeps the reservation, if it does not need more. Raises what
        the limits say."""
        self._accounting.check_available()
        limiter = self._accounting.limiter
        if limiter is None:
            return
        start = time.monotonic()
        charge = most(card, call, limited=_limits_usage(self._identity))
        held = self._reservation
        if held is not None:
            if charge.tokens <= held.charge.tokens and charge.microusd <= held.charge.microusd:
                return
            await self.release()
        self._reservation = await self._accounting.reserve(self._identity, self._request, charge, card.name)
        self._tell("limits", start)

    async def release(self) -> None:
        """Nothing was dispatched, or another attempt reserves anew: a request counts once."""
        held, self._reservation = self._reservation, None
        if held is not None and self._accounting.limiter is not None:
            await self._accounting.limiter.settle(held, Charge(), never_began=True)

    def headers(self) -> dict[str, str]:
        """`x-ratelimit-*`."""
        limiter, held = self._accounting.limiter, self._reservation
        return {} if limiter is None or held is None else limiter.headers(held)

    # --- after

    async def settle(self, ticket: Ticket) -> None:
        """Returns once the record is written: only then may the client get the end of its answer. Raises
        LedgerUnavailable if it must not. Only the first call does anything."""
        if self._settling:
            return
        self._settling = True
        record = self.measure(ticket)
        try:
            await self._complete(record, awaited=True)
        except asyncio.CancelledError:  # the client has gone meanwhile. A record that is written twice is there once
            self._accounting.run(self._complete(record, awaited=False))
            raise

    def leave(self, ticket: Ticket) -> None:
        """The client has its answer or has gone. Without an answer, its usage is known once the engine has stopped."""
        if not self._settling:
            self._settling = True
            self._output = sum(choice.output_tokens for active in ticket.active_requests for choice in active.choices)
            ticket.on_end = lambda: self._accounting.run(self._complete(self.measure(ticket), awaited=False))

    def measure(self, ticket: Ticket) -> UsageRecord:
        """What it has used and costs. Sets the cost in its answer."""
        if self.record is None:
            self.record = self._measure(ticket)
            if self._parent is not None:
                self._parent.helpers_microusd += self.record.microusd
            price = None if ticket.model is None else ticket.model.card.price
            if price is not None or self.helpers_microusd:
                cost = self.record.microusd + self.helpers_microusd
                for active in ticket.active_requests:
                    active.cost_usd = cost / 1e6
                if self._accounting.emit is not None and self._parent is None:
                    self._accounting.emit(events.Charged(self._request, time.monotonic(), cost))
        return self.record

    def _tell(self, stage: str, start: float) -> None:
        if self._accounting.emit is not None and self._parent is None:
            self._accounting.emit(events.GatewayWork(self._request, time.monotonic(), start, stage))

    async def _complete(self, record: UsageRecord, *, awaited: bool) -> None:
        start = time.monotonic()
        await self._accounting.complete(record, self._reservation, awaited=awaited, request=self._request)
        if self._accounting.durable:
            self._tell("ledger", start)

    def _measure(self, ticket: Ticket) -> UsageRecord:
        finish = _finish(ticket)
        answered = finish not in (FinishReason.ERROR, FinishReason.CANCELLED)
        if answered:
            charged = ticket.active_requests
        elif self._line is not None or (ticket.error is not None and not ticket.taken):
            charged = []
        else:
            charged = [active for active in ticket.active_requests if active.has_begun]
        prompt = sum(len(active.submits[0].tokens) for active in charged)
        cached = sum(active.cached_tokens for active in charged)
        output = sum(choice.output_tokens for active in charged for choice in active.choices)
        if charged and self._output is not None:
            output = min(output, self._output)
        card = None if ticket.model is None else ticket.model.card
        price = None if card is None else card.price
        source = ticket.source
        estimated = card is not None and card.remote and not answered
        return UsageRecord(
            request=self._line if self._line is not None and answered else self._request,
            t=self._accounting.clock(),
            tenant=self._identity.tenant,
            key=self._identity.key,
            model=source.model,
            replica=source.replica,
            input=prompt,
            cached=cached,
            output=output,
            drafted=min(output, sum(one.accepted for one in _timings(charged))),
            latency_s=round(time.monotonic() - self._start, 6),
            ttft_s=self._ttft_s(ticket),
            microusd=microusd(price, input_tokens=prompt, cached_tokens=cached, output_tokens=output),
            saved_microusd=saved_microusd(price, cached),
            finish=finish.value,
            estimated=estimated or any(active.usage_estimated for active in charged),
        )

    def _ttft_s(self, ticket: Ticket) -> float | None:
        timings = _timings(ticket.active_requests)
        times = [one.first_token for one in timings if one.first_token is not None]
        first = self.first_output if self.first_output is not None else min(times, default=None)
        return None if first is None else round(max(first - self._start, 0.0), 6)


def most(card: ModelCard, call: Call, *, limited: bool) -> Charge:
    """What a call may use at most: its prompts, none of them cached, and the output of all choices up to their limit.
    Raises InvalidRequest if there are limits, but none for the output."""
    prompt = sum(len(active.submits[0].tokens) for active in call.active_requests)
    output = sum(_most_output(active, card, limited=limited) for active in call.active_requests)
    cost = microusd(card.price, input_tokens=prompt, output_tokens=output)
    if card.price is not None and (card.price.cached_input or 0.0) > card.price.input:
        cost = max(cost, microusd(card.price, input_tokens=prompt, cached_tokens=prompt, output_tokens=output))
    return Charge(prompt + output, cost, prompt)


def _most_output(active: ActiveRequest, card: ModelCard, *, limited: bool) -> int:
    first = active.submits[0]
    if not card.remote or first.params.max_tokens is not None or first.task == "embed":
        return sum(submit.max_output for submit in active.submits)
    if card.context is None and limited:
        raise InvalidRequest(
            f"max_tokens is required: this API key has limits, and how much {card.name} writes without it is not known",
            param="max_tokens",
        )
    return len(active.submits) * (card.context or 0)


def _limits_usage(identity: Identity) -> bool:
    def limits(one: Limits) -> bool:
        return any(each is not None for each in (one.tokens_per_minute, one.microusd_per_day, one.microusd_per_month))

    return limits(identity.key_limits) or limits(identity.tenant_limits)


def _finish(ticket: Ticket) -> FinishReason:
    """Of the whole request: its error, or its first choice that did not finish."""
    if ticket.error is not None:
        return FinishReason.ERROR
    finishes = [choice.finish for active in ticket.active_requests for choice in active.choices]
    if any(finish in _UNFINISHED for finish in finishes):
        return FinishReason.CANCELLED
    return finishes[0] or FinishReason.CANCELLED


def _timings(active_requests: Sequence[ActiveRequest]) -> list[Timings]:
    """Of the choices that the engine has ended."""
    return [choice.timings for active in active_requests for choice in active.choices if choice.timings is not None]
