"""What all routes share: the models, and whether requests are accepted. One per server."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from msgspec.structs import replace
from starlette.types import Receive

from penstock.batch.manager import BatchManager
from penstock.batch.protocol import BatchData
from penstock.deployment.adapters import AdapterManager
from penstock.deployment.autoscaler import Autoscaler
from penstock.deployment.local_model import LocalModel
from penstock.deployment.protocol import ServedModel, State
from penstock.deployment.registry import ModelRegistry
from penstock.deployment.ticket import Ticket
from penstock.errors import ModelNotFound, ShuttingDown, Unauthorized
from penstock.flow import FinishReason, Request
from penstock.flow.identity import Source
from penstock.gateway.accounting import Accounting
from penstock.gateway.gateway import Gateway
from penstock.gateway.keys.directory import KeyDirectory, NoKeys
from penstock.gateway.keys.identity import Identity
from penstock.gateway.keys.manager import KeyManager
from penstock.gateway.keys.tiers import TIERS
from penstock.gateway.keys.token_limits import limit_output
from penstock.http.background import BATCH, LINE
from penstock.http.client_watch import while_connected
from penstock.http.response_store import MemoryResponseStore, ResponseStore
from penstock.http.response_warnings import WarningLog
from penstock.observe import events
from penstock.observe.events import Emit
from penstock.observe.metrics import PrometheusMetrics

MANY_CHOICES = 64  # more are counted in a thread: each takes some 50 µs


class ModelManager(Protocol):
    """Adds, loads, unloads and removes models while the server runs (`startup.server_models`)."""

    adapters: AdapterManager

    async def add(self, entry: Mapping[str, Any], *, trusted: bool) -> ServedModel:
        """An entry as in [[models]]. `trusted`: the client has an admin key."""

    async def remove(self, model: ServedModel) -> None: ...

    async def load(self, model: LocalModel) -> None: ...

    async def unload(self, model: LocalModel) -> None: ...

    async def sleep(self, model: LocalModel) -> None:
        """`load` wakes it."""

    def expires_in(self, model: LocalModel) -> float | None:
        """Seconds until an idle model is unloaded; None: never."""

    def is_pinned(self, model: LocalModel) -> bool:
        """Whether it stays loaded."""


class FurtherFrontends(Protocol):
    """The frontend processes of a server beside the one that answers this request (`frontends.supervisor`)."""

    def open_by_model(self) -> Mapping[str, int]:
        """Their open requests."""

    def tasks(self) -> int:
        """Of their event loops."""


class Service:
    def __init__(
        self,
        models: ModelRegistry,
        gateway: Gateway,
        metrics: PrometheusMetrics,
        *,
        stall_s: float,
        emit: Emit | None = None,
        keep_texts: bool = False,
        manager: ModelManager | None = None,
        default_max_tokens: int | None = None,
        accounting: Accounting | None = None,
        keys: KeyDirectory | None = None,
        key_manager: KeyManager | None = None,
        end_revoked: bool = True,
        autoscaler: Autoscaler | None = None,
        responses: ResponseStore | None = None,
        completions: ResponseStore | None = None,
        batch_data: Callable[[], BatchData] | None = None,
    ) -> None:
        """`end_revoked`: running requests end when their key is revoked or expires. `responses` and `completions` are
        those that are stored. `batch_data` opens the files and batches that servers share; None: they are in the data
        folder."""
        self.models = models
        self.gateway = gateway
        self.metrics = metrics
        self.stall_s = stall_s
        self.emit = emit
        self.keep_texts = keep_texts
        self.manager = manager  # None: models neither come nor go
        self.default_max_tokens = default_max_tokens
        self.accounting = accounting or Accounting()  # without a ledger: only the cost of answers
        self.keys: KeyDirectory = keys or NoKeys()
        self.key_manager = key_manager  # None: there is no database
        if key_manager is not None and end_revoked:
            key_manager.on_poll = self.end_revoked
        self.warnings = WarningLog()
        self.closing = False
        self.open = 0  # requests without a complete response
        self.open_by_model: Counter[str] = Counter()
        self._open_by_key: defaultdict[str, set[Ticket]] = defaultdict(set)
        self.autoscaler = autoscaler or Autoscaler(lambda: models.local)
        self.batch_data = batch_data
        self.batches: BatchManager | None = None  # set by its routes
        self.responses: ResponseStore = MemoryResponseStore() if responses is None else responses
        self.completions: ResponseStore = MemoryResponseStore(what="completion") if completions is None else completions
        self.frontends: FurtherFrontends | None = None  # of a server that has several

    @property
    def ready(self) -> bool:
        """Whether any model takes requests."""
        return not self.closing and any(takes_requests(model.state) for model in self.models)

    def models_of(self, identity: Identity) -> ModelRegistry:
        """The models that a key may use: for it there are no others."""
        return self.models.allowed(identity.models)

    async def submit(self, model: ServedModel, requests: list[Request], identity: Identity, receive: Receive) -> Ticket:
        """Submits all requests or none, as those of `identity`. The caller must call `finish` with the ticket. Raises
        ClientDisconnect if the client of `receive` hangs up while others are asked for it."""
        self._check_open()
        if identity.models is not None:
            model = self.models_of(identity).find(model.card.name)
        self._check_helpers(requests, identity)
        background = BATCH.get() is not None
        limited = [limit_output(request, identity, self.default_max_tokens) for request in requests]
        owner = {"tenant": identity.tenant, "tier": TIERS[identity.tier], "weight": identity.weight}
        owned = [replace(request, **owner, background=background) for request in limited]
        self.open += 1  # preparing it may take long, and a server that stops waits for it
        try:
            account = self.accounting.open(identity, events.http_request_id(requests[0].id), LINE.get())
            submitting = self.gateway.submit(model, owned, account)
            waits = self.gateway.waits_for_others(model, owned)
            ticket = await (while_connected(receive, submitting) if waits else submitting)
        except BaseException:
            self.open -= 1
            raise
        self.warnings.log(ticket.active_requests)
        self.open_by_model[_asked(ticket)] += 1
        self._open_by_key[identity.key].add(ticket)
        ticket.key = identity.key
        return ticket

    def _check_helpers(self, requests: Sequence[Request], identity: Identity) -> None:
        """Models that requests name for the assembly of their prompts. For a key there are only those it may use."""
        for request in requests:
            for field in ("summary_model", "rank_model") if request.context is not None else ():
                if (name := getattr(request.context, field)) is not None:
                    try:
                        self.models_of(identity).find(name)
                    except ModelNotFound as error:
                        raise ModelNotFound(f"context.{field}: {error.message}", param=f"context.{field}") from None

    def finish(self, ticket: Ticket, at: float | None = None) -> None:
        """The response is sent (since `at`), or the client has disconnected: cancels what still runs, and counts it."""
        self.open -= 1
        self.open_by_model[_asked(ticket)] -= 1
        self._forget_key(ticket)
        self.gateway.finish(ticket)
        if ticket.account is not None:
            ticket.account.leave(ticket)
        if not ticket.done and ticket.deployment is not None:
            ticket.deployment.cancel(ticket)
        ticket.leave()
        if sum(len(active.choices) for active in ticket.active_requests) > MANY_CHOICES:
            asyncio.get_running_loop().run_in_executor(None, self.count, ticket)
        else:
            self.count(ticket)
        if self.emit is not None:
            self.emit(self._finished_event(ticket, time.monotonic() if at is None else at))

    def end_revoked(self) -> None:
        """End the running requests of keys that are not valid any more, each with an error that says why."""
        for key, tickets in list(self._open_by_key.items()):
            try:
                if key:  # a batch of a server that had no keys has none
                    self.keys.find(key)
            except Unauthorized as error:
                for ticket in list(tickets):
                    ticket.end(type(error)(f"{error.message} while this request was running"))

    def _forget_key(self, ticket: Ticket) -> None:
        tickets = self._open_by_key[ticket.key]
        tickets.discard(ticket)
        if not tickets:
            del self._open_by_key[ticket.key]

    def count(self, ticket: Ticket) -> None:
        """In the metrics."""
        source = ticket.source
        for active in ticket.active_requests:
            for choice in active.choices:
                reason = choice.finish or FinishReason.CANCELLED
                # A prompt counts once, however many choices it has, as in `usage`.
                prompt, cached = (len(active.submits[0].tokens), active.cached_tokens) if choice.index == 0 else (0, 0)
                counts = (prompt, cached, choice.output_tokens)
                # Latencies of batch lines would hide those of clients that wait.
                timings = None if active.submits[0].background else choice.timings
                self.metrics.count_ended(source, reason, *counts, timings)

    def _finished_event(self, ticket: Ticket, at: float) -> events.Finished:
        ended = [
            events.Ended(
                number=submit.number,
                finish=choice.finish or FinishReason.CANCELLED,
                stop=choice.stop,
                prompt_tokens=len(submit.tokens),
                cached_tokens=active.cached_tokens,
                output_tokens=choice.output_tokens,
                text=choice.text if self.keep_texts else None,
            )
            for active in ticket.active_requests
            for submit, choice in zip(active.submits, active.choices, strict=True)
        ]
        error = ticket.error
        name = events.http_request_id(ticket.active_requests[0].id)
        return events.Finished(name, at, ended, error.code if error else None, error.message if error else None)

    def expires_in(self, model: LocalModel) -> float | None:
        """Seconds until an idle model is unloaded; None: never."""
        return None if self.manager is None else self.manager.expires_in(model)

    def replica_queries(self) -> dict[Source, Callable[[], Awaitable[dict[str, Any]]]]:
        """What asks each replica's engine for its statistics."""
        replicas = [replica for model in self.models.local for replica in model.replicas.replicas]
        return {replica.source: partial(replica.ask, "stats") for replica in replicas}

    def engine_pids(self) -> list[int]:
        """Of the replicas whose engine has a process of its own."""
        replicas = [replica for model in self.models.local for replica in model.replicas.replicas]
        return [replica.facts["pid"] for replica in replicas if replica.facts.get("pid")]

    async def drain(self, deadline_s: float) -> None:
        """Accept no more requests, and wait for the open ones; after the deadline they end."""
        self.closing = True
        until = time.monotonic() + deadline_s
        while self.open and time.monotonic() < until:
            await asyncio.sleep(0.02)
        self.end_all()

    def end_all(self) -> None:
        for model in self.models:
            model.end_all("the server is shutting down")

    def close(self) -> None:
        for model in self.models:
            model.close()

    def _check_open(self) -> None:
        if self.closing:
            raise ShuttingDown("the server is shutting down and accepts no more requests")


def takes_requests(state: State) -> bool:
    """Whether a model takes requests, at once or after it has been loaded."""
    return state in (State.READY, State.UNLOADED, State.ASLEEP)


def _asked(ticket: Ticket) -> str:
    """The model that the client named: another one may answer."""
    return (ticket.call.route.asked if ticket.call is not None else "") or ticket.source.model
