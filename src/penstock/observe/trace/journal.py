"""The journal: the listener of all events. It keeps requests, their sequences and the replicas' steps, all bounded.

Requests stay while they are open and then until 2,000 later ones have ended; steps as in `step_ring`. Prompts and texts
are kept only with `keep_texts`. Requests are found by ids that are unique per server; what the engine tells of their
sequences is in `sequences`; what belongs to one replica is in its ReplicaTrace, found by its Source.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import add
from typing import Any

from penstock.flow import FinishReason
from penstock.flow.identity import UNNAMED, Source
from penstock.flow.record import WAITS
from penstock.flow.routing import FailedAttempt
from penstock.observe import events
from penstock.observe.epoch import Epoch
from penstock.observe.trace.records import PRIORITY, RequestTrace, SequenceTrace
from penstock.observe.trace.replica import ReplicaTrace, Totals
from penstock.observe.trace.sequences import SequenceTraces

MAX_DONE = 2000
MAX_SCALINGS = 200
MAX_SAFETY_HITS = 64  # of one request, which may have thousands of choices
ID_PREFIXES = ("chatcmpl-", "cmpl-", "resp_", "msg_")  # of the ids in responses
UNKNOWN_MODEL = "unknown"  # the label of errors of requests for models that do not exist


class Journal:
    def __init__(
        self,
        source: Source = UNNAMED,
        *,
        keep_texts: bool = False,
        listeners: Sequence[Callable[[RequestTrace], None]] = (),
        clock: Callable[[], float] = time.monotonic,
        epoch: Epoch | None = None,
        max_done: int = MAX_DONE,
    ) -> None:
        """`source` is the default: the only replica, or the one that requests count for until their model is known.
        `listeners` are called with each request that has ended."""
        self.source = source
        self.clock = clock
        self.epoch = epoch or Epoch.now(clock)
        self.keep_texts = keep_texts
        self.replicas: dict[Source, ReplicaTrace] = {source: ReplicaTrace(source)}
        self.errors: Counter[tuple[str, str]] = Counter()  # requests that failed or were rejected, by model and code
        self.open: OrderedDict[str, RequestTrace] = OrderedDict()
        self.done: deque[RequestTrace] = deque()
        self.sequences = SequenceTraces(self.replica)
        self.first_tokens = self.sequences.first_tokens
        self.counts: Counter[str] = Counter()  # requests ever accepted, by tenant
        # From the name that a client gave to that of the model; None: there is no such model.
        self.find_model: Callable[[str | None], str | None] = lambda name: source.model if name is None else None
        self.scalings: deque[events.Scaled] = deque(maxlen=MAX_SCALINGS)
        self._accepted_requests = 0
        self._max_done = max_done
        self._listeners = listeners
        self._requests: dict[str, RequestTrace] = {}  # by id, all that are kept
        self._aliases: dict[tuple[str, str], str] = {}  # tenant, x-request-id -> id: clients choose theirs
        self._handlers: dict[type[events.Event], Callable[[Any], None]] = {
            events.Accepted: self._accepted,
            events.Parsed: self._parsed,
            events.Validated: self._validated,
            events.ContextAssembled: self._context_assembled,
            events.Rendered: self._rendered,
            events.Tokenized: self._tokenized,
            events.Queued: self._queued,
            events.Routed: self._routed,
            events.AttemptFailed: self._attempt_failed,
            events.SafetyHit: self._safety_hit,
            events.GatewayWork: self._gateway_work,
            events.Requeued: self.sequences.requeue,
            events.Delivered: self.sequences.deliver,
            events.Flushed: self._flushed,
            events.FlushedTokens: self._flushed_tokens,
            events.Charged: self._charged,
            events.Finished: self._finished,
            events.Rejected: self._rejected,
            events.Scaled: self.scalings.append,
        }

    def record(self, event: events.Event) -> None:
        if (handler := self._handlers.get(type(event))) is not None:
            handler(event)

    # --- reads

    def at(self, t: float | None) -> int | None:
        """An instant in the API: microseconds since the epoch."""
        return None if t is None else self.epoch.micros(t)

    def replica(self, source: Source | None = None) -> ReplicaTrace:
        """What is known of a replica; None: of the default one."""
        source = self.source if source is None else source
        trace = self.replicas.get(source)
        if trace is None:
            trace = self.replicas[source] = ReplicaTrace(source)
        return trace

    @property
    def totals(self) -> Totals:
        """Of all replicas together."""
        return reduce(add, [trace.totals for trace in list(self.replicas.values())], Totals())

    @property
    def kv_use(self) -> float:
        """Of the replica whose KV cache is fullest."""
        return max(trace.level.kv_use for trace in list(self.replicas.values()))

    def find(self, name: str, tenant: str = "") -> RequestTrace | None:
        """By id, with or without its prefix, by x-request-id or by number; None for another tenant's."""
        plain = next((name.removeprefix(prefix) for prefix in ID_PREFIXES if name.startswith(prefix)), name)
        found = self._requests.get(plain)
        if found is None or found.tenant != tenant:
            found = self._requests.get(self._aliases.get((tenant, name), ""))
        if found is None and name.isdecimal() and len(name) < 12:
            return next((request for request in self.requests(tenant) if request.number == int(name)), None)
        return found

    def requests(self, tenant: str = "") -> Iterator[RequestTrace]:
        """Those of a tenant: open ones first, then finished ones, newest first."""
        for request in (*reversed(self.open.values()), *reversed(self.done)):
            if request.tenant == tenant:
                yield request

    def ids_of_tenant(self, tenant: str, requests: Sequence[str]) -> list[str]:
        """Those of these ids that belong to kept requests of the tenant."""
        return [name for name in requests if (one := self._requests.get(name)) is not None and one.tenant == tenant]

    @property
    def running(self) -> int:
        return self._count(waiting=False)

    @property
    def waiting(self) -> int:
        return self._count(waiting=True)

    def waiting_by_reason(self, source: Source | None = None) -> dict[str, int]:
        """Sequences that wait, at one replica or (None) at all of them, by reason as of the last step: those that came
        since count for what the first in the queue waits for."""
        counts = dict.fromkeys((*WAITS, PRIORITY), 0)
        for trace in [self.replica(source)] if source is not None else list(self.replicas.values()):
            waiting, level = self._count(waiting=True, source=trace.source), trace.level
            for index, (reason, count) in enumerate(zip(WAITS, level.waits, strict=True)):
                if index != level.blocked:
                    counts[reason] += min(count, waiting)
                    waiting -= min(count, waiting)
            counts[WAITS[level.blocked]] += waiting
        return counts

    def _count(self, *, waiting: bool, source: Source | None = None) -> int:
        """Open sequences that wait, or that run."""
        return sum(
            sequence.waiting == waiting and sequence.finish is None
            for request in self.open.values()
            if source is None or request.source == source
            for sequence in request.sequences
        )

    # --- events: on the way in

    def _accepted(self, event: events.Accepted) -> None:
        self.counts[event.tenant] += 1
        self._accepted_requests += 1
        number = self._accepted_requests
        request = RequestTrace(
            number, event.request, event.request_id, event.kind, event.t,
            trace=event.trace, tenant=event.tenant, batch=event.batch, source=self.source, auth_s=event.auth_s,
        )  # fmt: skip
        self.open[event.request] = self._requests[event.request] = request
        self._aliases[event.tenant, event.request_id] = event.request

    def _parsed(self, event: events.Parsed) -> None:
        if request := self._of(event):
            request.parsed, request.stream, request.asked = event.t, event.stream, event.model

    def _validated(self, event: events.Validated) -> None:
        if request := self._of(event):
            request.validated, request.params = event.t, event.params

    def _context_assembled(self, event: events.ContextAssembled) -> None:
        if request := self._of(event):
            request.context = event.trace
            request.work.append(("context", event.start, event.t))

    def _gateway_work(self, event: events.GatewayWork) -> None:
        if request := self._of(event):
            request.work.append((event.stage, event.start, event.t))

    def _rendered(self, event: events.Rendered) -> None:
        if request := self._of(event):
            self._assign_model(request, event.model)
            request.rendered.append((event.start, event.t))

    def _tokenized(self, event: events.Tokenized) -> None:
        if request := self._of(event):
            self._assign_model(request, event.model)
            request.tokenized.append((event.start, event.t))
            if self.keep_texts:
                request.prompts = [*(request.prompts or []), array("I", event.tokens)]
                request.opening = request.opening or event.opening

    def _assign_model(self, request: RequestTrace, model: str) -> None:
        """Its replica is known once it is queued there."""
        if request.source.model != model:
            request.source = Source(model)

    def _queued(self, event: events.Queued) -> None:
        if request := self._of(event):
            request.queued, request.source, request.adapter = event.t, event.source, event.adapter
            for number, name, prompt, choice, prompt_tokens in event.sequences:
                sequence = SequenceTrace(number, name, prompt, choice, prompt_tokens, event.t)
                request.sequences.append(sequence)
                self.sequences.add(sequence, request)

    def _routed(self, event: events.Routed) -> None:
        if request := self._of(event):
            request.route += event.decisions

    def _attempt_failed(self, event: events.AttemptFailed) -> None:
        """The next attempt has sequences of its own."""
        if request := self._of(event):
            request.route.append(FailedAttempt(event.deployment, event.code, event.message))
            for sequence in request.sequences:
                self.sequences.forget(sequence)
            request.sequences = []

    def _safety_hit(self, event: events.SafetyHit) -> None:
        request = self._of(event)
        if request is not None and len(request.safety) < MAX_SAFETY_HITS:
            request.safety.append(event)

    # --- events: on the way out

    def _flushed(self, event: events.Flushed) -> None:
        if (request := self._requests.get(event.request)) is not None:
            request.add_write(event.start, event.t, event.num_bytes)
            self.replica(request.source).count_writes(1, event.num_bytes)

    def _flushed_tokens(self, event: events.FlushedTokens) -> None:
        if (request := self._requests.get(event.request)) is not None:
            times, sizes = event.writes[::2], event.writes[1::2]
            request.add_writes(times, sizes)
            self.replica(request.source).count_writes(len(times), int(sum(sizes)))

    def _charged(self, event: events.Charged) -> None:
        if (request := self._requests.get(event.request)) is not None:
            request.microusd = event.microusd

    def _finished(self, event: events.Finished) -> None:
        request = self.open.get(event.request)
        if request is None:
            return
        totals = self.replica(request.source).totals
        for ended in event.sequences:
            if (sequence := self.sequences.get(ended.number)) is not None:
                sequence.finish, sequence.stop, sequence.waiting = ended.finish, ended.stop, False
                totals.output_tokens += ended.output_tokens - sequence.output_tokens  # less what was surplus
                sequence.output_tokens = ended.output_tokens
                sequence.prompt_tokens = ended.prompt_tokens  # of an upstream an estimate until now
                if sequence.admitted is None:  # no engine of ours has said it
                    sequence.cached = ended.cached_tokens
        if self.keep_texts:
            request.answers = [ended.text or "" for ended in event.sequences]
        finishes = [ended.finish for ended in event.sequences]
        worst = next((one for one in (FinishReason.ERROR, FinishReason.CANCELLED) if one in finishes), None)
        request.finish = (worst or finishes[0]).value if finishes else FinishReason.END.value
        request.code, request.message = event.code, event.message
        self._close(request, event.t)

    def _rejected(self, event: events.Rejected) -> None:
        request = self.open.get(event.request)
        if request is not None:
            request.finish, request.status = "rejected", event.status
            request.code, request.message = event.code, event.message
            self._close(request, event.t)

    def _close(self, request: RequestTrace, t: float) -> None:
        request.end = t
        replica = self.replica(request.source)
        replica.totals.requests += 1
        replica.totals.errors += request.failed
        if request.queued is not None:
            replica.prompt_tokens.add(request.prompt_tokens)
            replica.output_tokens.add(request.output_tokens)
        if request.code is not None:
            model = request.model if request.has_model else self.find_model(request.asked)
            self.errors[model or UNKNOWN_MODEL, request.code] += 1
        del self.open[request.id]
        self.done.append(request)
        for listener in self._listeners:
            listener(request)
        if len(self.done) > self._max_done:
            self._forget(self.done.popleft())

    def _forget(self, request: RequestTrace) -> None:
        self._requests.pop(request.id, None)
        alias = (request.tenant, request.request_id)
        if self._aliases.get(alias) == request.id:
            del self._aliases[alias]
        for sequence in request.sequences:
            self.sequences.forget(sequence)

    def _of(self, event: events.Event) -> RequestTrace | None:
        return self._requests.get(events.http_request_id(event.request))
