"""The journal: listens to the events and keeps what they tell, bounded.

Requests are kept while they are open and then until 2,000 later ones have ended; steps as in `steps`. Prompts and texts
are kept only if the operator has said so.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.flow import FinishReason
from penstock.flow.record import CONSTRAINT, PREFIX, WAITS, Blocks, LetIn, StepRecord, micros
from penstock.observe import events
from penstock.observe.steps import Steps
from penstock.observe.trace.records import PRIORITY, RequestTrace, SequenceTrace

MAX_DONE = 2000
MAX_SAMPLES = 20_000
PREFIXES = ("chatcmpl-", "cmpl-", "resp_", "msg_")  # of ids, as answers have them
LAB = "lab"  # requests of people who look, not of clients: no objective is about them


class Meter(Protocol):
    """What the journal tells as it reads along; see `meter.Meter`."""

    def stepped(self, step: StepRecord) -> None: ...

    def token_gaps(self, gaps: dict[float, int]) -> None: ...

    def closed(self, request: RequestTrace) -> None: ...


@dataclass(slots=True)
class Totals:
    """Since the server started."""

    prompt_tokens: int = 0
    hit_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    errors: int = 0  # requests that failed
    requests: int = 0  # that ended
    steps: int = 0
    rows: int = 0
    step_s: float = 0.0


@dataclass(slots=True)
class Level:
    """How things stood, at the last step or when the engine was last asked."""

    t: float = 0.0
    waiting: int = 0
    parked: int = 0
    held: int = 0
    blocked: int = 0
    evictions: int = 0
    blocks: list[Blocks] = field(default_factory=list)


class Journal:
    def __init__(
        self,
        *,
        keep_texts: bool = False,
        meter: Meter | None = None,
        listeners: Sequence[Callable[[RequestTrace], None]] = (),
        clock: Callable[[], float] = time.monotonic,
        max_done: int = MAX_DONE,
    ) -> None:
        self.clock = clock
        self.epoch = clock()  # what instants are counted from
        self.started_unix = time.time()
        self.keep_texts = keep_texts
        self.steps = Steps()
        self.totals = Totals()
        self.level = Level()
        self.open: OrderedDict[str, RequestTrace] = OrderedDict()
        self.done: deque[RequestTrace] = deque()
        self.first_tokens: deque[tuple[float, float]] = deque(maxlen=MAX_SAMPLES)  # when, seconds it took
        self.counts: Counter[str] = Counter()  # requests ever accepted, by tenant
        self._max_done = max_done
        self._meter = meter
        self._listeners = [*listeners, *([meter.closed] if meter is not None else [])]  # told of each that has ended
        self._requests: dict[str, RequestTrace] = {}  # by id, all that are kept
        self._aliases: dict[tuple[str, str], str] = {}  # tenant, x-request-id -> id: clients choose theirs
        self._by_id: dict[str, SequenceTrace] = {}
        self._by_number: dict[int, SequenceTrace] = {}
        self._owners: dict[int, RequestTrace] = {}  # by number of a sequence
        self._readers: dict[type[events.Event], Callable[[Any], None]] = {
            events.Accepted: self._accepted,
            events.Parsed: self._parsed,
            events.Validated: self._validated,
            events.Rendered: self._rendered,
            events.Tokenized: self._tokenized,
            events.Queued: self._queued,
            events.Requeued: self._requeued,
            events.Delivered: self._delivered,
            events.Flushed: self._flushed,
            events.FlushedTokens: self._flushed_tokens,
            events.Finished: self._finished,
            events.Rejected: self._rejected,
        }

    def take(self, event: events.Event) -> None:
        if (reader := self._readers.get(type(event))) is not None:
            reader(event)

    # --- questions

    def at(self, t: float | None) -> int | None:
        """An instant as the API has it: microseconds since the epoch."""
        return None if t is None else round((t - self.epoch) * 1e6)

    def find(self, name: str, tenant: str = "") -> RequestTrace | None:
        """By id, as answers have it or plain, by x-request-id or by number. Another tenant's does not exist."""
        plain = next((name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)), name)
        found = self._requests.get(plain)
        if found is None or found.tenant != tenant:
            found = self._requests.get(self._aliases.get((tenant, name), ""))
        if found is None and name.isdecimal() and len(name) < 12:
            return next((request for request in self.requests(tenant) if request.number == int(name)), None)
        return found

    def requests(self, tenant: str = "") -> Iterator[RequestTrace]:
        """All of a tenant's that are kept, newest first as far as they are done."""
        for request in (*reversed(self.open.values()), *reversed(self.done)):
            if request.tenant == tenant:
                yield request

    def sequence(self, number: int) -> tuple[RequestTrace, SequenceTrace] | None:
        owner = self._owners.get(number)
        return None if owner is None else (owner, self._by_number[number])

    def owns(self, tenant: str, number: int) -> bool:
        """Whether a sequence is this tenant's. Of one that is forgotten nobody knows: it is shown where there is but
        one tenant."""
        owner = self._owners.get(number)
        return tenant == ("" if owner is None else owner.tenant)

    def of_tenant(self, tenant: str, requests: Sequence[str]) -> list[str]:
        """Of these ids, those of a tenant's requests that are kept."""
        return [name for name in requests if (one := self._requests.get(name)) is not None and one.tenant == tenant]

    @property
    def running(self) -> int:
        return sum(not s.waiting and s.finish is None for r in self.open.values() for s in r.sequences)

    @property
    def waiting(self) -> int:
        return sum(s.waiting and s.finish is None for r in self.open.values() for s in r.sequences)

    def waiting_by_reason(self) -> dict[str, int]:
        """As of the last step; those that came since have not been looked at."""
        waiting, level = self.waiting, self.level
        counts = dict.fromkeys((*WAITS, PRIORITY), 0)
        for reason, count in ((CONSTRAINT, level.held), (PREFIX, level.parked)):
            counts[WAITS[reason]] = min(count, waiting)
            waiting -= counts[WAITS[reason]]
        counts[WAITS[level.blocked]] += waiting
        return counts

    # --- on the way in

    def _accepted(self, event: events.Accepted) -> None:
        self.counts[event.tenant] += 1
        number = self.counts.total()
        request = RequestTrace(
            number, event.request, event.request_id, event.kind, event.t, trace=event.trace, tenant=event.tenant
        )
        self.open[event.request] = self._requests[event.request] = request
        self._aliases[event.tenant, event.request_id] = event.request

    def _parsed(self, event: events.Parsed) -> None:
        if request := self._of(event):
            request.parsed, request.stream = event.t, event.stream

    def _validated(self, event: events.Validated) -> None:
        if request := self._of(event):
            request.validated, request.params = event.t, event.params

    def _rendered(self, event: events.Rendered) -> None:
        if request := self._of(event):
            request.rendered.append((event.start, event.t))

    def _tokenized(self, event: events.Tokenized) -> None:
        if request := self._of(event):
            request.tokenized.append((event.start, event.t))
            if self.keep_texts:
                request.prompts = [*(request.prompts or []), array("I", event.tokens)]

    def _queued(self, event: events.Queued) -> None:
        if request := self._of(event):
            request.queued = event.t
            for number, name, prompt, choice, prompt_tokens in event.sequences:
                sequence = SequenceTrace(number, name, prompt, choice, prompt_tokens, event.t)
                request.sequences.append(sequence)
                self._by_id[name] = self._by_number[number] = sequence
                self._owners[number] = request

    def _requeued(self, event: events.Requeued) -> None:
        if (sequence := self._by_id.get(event.sequence)) is not None:
            sequence.received = sequence.admitted = None
            sequence.waiting = True

    # --- the engine's

    def _delivered(self, event: events.Delivered) -> None:
        by_id, start, settled = self._by_id, event.start, event.start
        news = [
            (sequence, delta, t)
            for delta, t in zip(event.deltas, event.times, strict=True)
            if (sequence := by_id.get(delta.id)) is not None
        ]
        if event.record is not None:
            # It is one frame: no overflow.
            text_us = [word for one, _, t in news for word in (one.number, int((t - start) * 1e6 + 0.5))]
            step = self.steps.add(event.record, start, array("I", text_us).tobytes())
            settled = step.start + step.settled_us * 1e-6
            self._stepped(step, settled)
        gaps: dict[float, int] = {}
        last_step, tokens = self.steps.last, 0
        for sequence, delta, t in news:
            if sequence.finish is not None:
                continue
            if count := len(delta.tokens):
                if sequence.last_token is None:
                    self._first_token(sequence, settled, t)
                else:
                    gap = settled - sequence.last_token
                    gaps[gap] = gaps.get(gap, 0) + count
                sequence.last_token = settled
                sequence.output_tokens += count
                tokens += count
            sequence.last_step, sequence.heard, sequence.text_done = last_step, start, t
            if delta.finish is not None:
                sequence.finish, sequence.finished = delta.finish, settled
                sequence.waiting = False
        self.totals.output_tokens += tokens
        if gaps and self._meter is not None:
            self._meter.token_gaps(gaps)

    def _first_token(self, sequence: SequenceTrace, settled: float, t: float) -> None:
        request = self._owners[sequence.number]
        if not request.answered and request.kind != LAB:
            self.first_tokens.append((t, t - request.accepted))
        request.answered = True
        sequence.first_token, sequence.first_text = settled, t

    def _stepped(self, step: StepRecord, settled: float) -> None:
        totals, level = self.totals, self.level
        totals.steps += 1
        totals.rows += len(step.words)
        totals.step_s += step.settled_us * 1e-6
        level.t, level.waiting, level.parked, level.blocked = settled, step.waiting, step.parked, step.blocked
        level.evictions, level.blocks, level.held = step.evictions, step.blocks, step.held
        for entry in step.let_in:
            if (sequence := self._by_number.get(entry.number)) is not None:
                self._let_in(sequence, entry, step)
        for number, why in step.sent_back:
            totals.preemptions += 1
            if (sequence := self._by_number.get(number)) is not None:
                sequence.preemptions.append((step.start, step.number, why))
                sequence.waiting = True
        if self._meter is not None:
            self._meter.stepped(step)

    def _let_in(self, sequence: SequenceTrace, entry: LetIn, step: StepRecord) -> None:
        sequence.waiting = False
        if sequence.admitted is not None or sequence.finish is not None:  # it was sent back in between, or has failed
            return
        self.totals.prompt_tokens += sequence.prompt_tokens
        self.totals.hit_tokens += entry.cached
        sequence.received, sequence.admitted = entry.since, step.start
        sequence.first_step = sequence.last_step = step.number
        sequence.cached, sequence.finding = entry.cached, entry.finding
        # The engine reads its post between two steps: until then it was in one.
        step_us, *others = entry.waits_us
        sequence.waits_us = (step_us + micros(entry.since - sequence.queued), *others)
        sequence.ahead, sequence.overtaken = entry.ahead, entry.overtaken

    # --- on the way out

    def _flushed(self, event: events.Flushed) -> None:
        if (request := self._requests.get(event.request)) is not None:
            request.wrote(event.start, event.t, event.num_bytes)

    def _flushed_tokens(self, event: events.FlushedTokens) -> None:
        if (request := self._requests.get(event.request)) is not None:
            request.wrote_at_once(event.writes)

    def _finished(self, event: events.Finished) -> None:
        request = self.open.get(event.request)
        if request is None:
            return
        for ended in event.sequences:
            if (sequence := self._by_number.get(ended.number)) is not None:
                sequence.finish, sequence.stop, sequence.waiting = ended.finish, ended.stop, False
                self.totals.output_tokens += ended.output_tokens - sequence.output_tokens  # less what was surplus
                sequence.output_tokens = ended.output_tokens
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
        self.totals.requests += 1
        self.totals.errors += request.failed
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
            self._by_id.pop(sequence.id, None)
            self._by_number.pop(sequence.number, None)
            self._owners.pop(sequence.number, None)

    def _of(self, event: events.Event) -> RequestTrace | None:
        return self._requests.get(events.whole(event.request))
