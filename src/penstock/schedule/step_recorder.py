"""Records what the scheduler does: one packed record per step (`flow.record`), for observers."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.cache import PrefixHit
from penstock.cache.explain import RunningPrefixes, explain
from penstock.flow import RowResult, record
from penstock.flow.record import Admission, Finding, micros
from penstock.schedule.sequence import Sequence
from penstock.schedule.tenant_shares import TenantShare
from penstock.schedule.wait_totals import WaitTotals

if TYPE_CHECKING:
    from penstock.schedule.planner import Step
    from penstock.schedule.queues import SequenceQueues

NONE_WAIT = (0,) * len(record.WAITS)


@dataclass(slots=True)
class WaitState:
    """Of a sequence that waits."""

    since: float
    before: tuple[float, ...]  # the marks of its share's WaitTotals when it was last queued
    ahead: int  # sequences of its share before it in the queue when it was queued
    admissions: int  # of its share, up to when it was queued
    spent: list[float] = field(default_factory=lambda: [0.0] * len(record.WAITS))  # seconds, of earlier stretches
    aside: tuple[int, float] | None = None  # parked or held: for what reason, and since when


@dataclass(slots=True)
class PlannedStep:
    """What the record of a step in flight will say of its plan."""

    start: float
    planned_us: int
    waits: tuple[int, ...]
    state: tuple[int, int, int]
    admissions: list[bytes]
    preemptions: list[tuple[int, int]]


class StepRecorder:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reason = record.STEP  # why the last plan did not admit the first in the queue
        self._blocked: list[TenantShare] = []  # with sequences that the last plan did not admit
        self._running: RunningPrefixes | None = None  # while a plan is made
        self._admitted: list[bytes] = []  # packed, since the last planned step
        self._preemptions: list[tuple[int, int]] = []
        self._planned: dict[int, PlannedStep] = {}  # by step

    # --- sequences

    def enqueue(self, sequence: Sequence, ahead: int) -> None:
        now = self._clock()
        share = sequence.share
        sequence.waiting = WaitState(now, self._totals(share).marks(now), ahead, share.admissions)

    def set_aside(self, sequence: Sequence, reason: int) -> None:
        """It leaves the queue to wait for a prefix, its constraint or its adapter."""
        if (waiting := sequence.waiting) is not None:
            now = self._clock()
            self._charge(sequence, waiting, now)
            waiting.aside = (reason, now)

    def requeue(self, sequence: Sequence, ahead: int) -> None:
        waiting = sequence.waiting
        if waiting is not None and waiting.aside is not None:
            now = self._clock()
            reason, since = waiting.aside
            waiting.spent[reason] += now - since
            waiting.before, waiting.aside = self._totals(sequence.share).marks(now), None
            if reason in (record.CONSTRAINT, record.ADAPTER):
                waiting.ahead, waiting.admissions = ahead, sequence.share.admissions

    def leave_share(self, sequence: Sequence) -> None:
        """It is promoted to another share: `join_share` follows."""
        if sequence.waiting is not None:
            self._charge(sequence, sequence.waiting, self._clock())

    def join_share(self, sequence: Sequence, ahead: int) -> None:
        if (waiting := sequence.waiting) is not None:
            waiting.before = self._totals(sequence.share).marks(self._clock())
            waiting.ahead, waiting.admissions = ahead, sequence.share.admissions

    def admit(self, sequence: Sequence, hit: PrefixHit, queues: SequenceQueues) -> None:
        waiting, share = sequence.waiting, sequence.share
        if waiting is None:
            return
        self._charge(sequence, waiting, self._clock())
        overtaken = max(0, share.admissions - waiting.admissions - waiting.ahead)
        share.admissions += 1
        waits_us = tuple(map(micros, waiting.spent))
        finding = self._explain(sequence, hit, queues) if sequence.admitted is None else Finding()
        if self._running is not None:
            self._running.add(sequence.chain, sequence.tokens, hit.tokens)
        entry = Admission(
            sequence.message.number, waiting.since, hit.tokens, waits_us, waiting.ahead, overtaken, finding
        )
        self._admitted.append(record.pack_admission(entry))
        sequence.waiting = None

    def preempt(self, sequence: Sequence, why: int) -> None:
        self._preemptions.append((sequence.message.number, why))
        self.enqueue(sequence, 0)

    # --- steps

    def note_blocked(self, reason: int, blocked: list[TenantShare], now: float) -> None:
        """After a plan: the shares whose sequences still wait, in order, and why the first of them does. The others
        wait for their turn."""
        for share in self._blocked:
            if share not in blocked:
                self._totals(share).note(record.STEP, now)
        for place, share in enumerate(blocked):
            self._totals(share).note(record.SHARE if place else reason, now)
        self._reason, self._blocked = reason, blocked
        self._running = None

    def begin_step(self, step: Step, start: float, queues: SequenceQueues) -> None:
        history = queues.cache.history
        state = (len(queues.running), history.evictions if history is not None else 0, self._reason)
        self._planned[step.plan.number] = PlannedStep(
            start, micros(self._clock() - start), self._waits(queues), state, self._admitted, self._preemptions
        )
        self._admitted, self._preemptions = [], []

    def end_step(self, step: Step, results: Items[RowResult], collected: float, queues: SequenceQueues) -> bytes:
        """`results` may be left out where nothing is drafted."""
        planned = self._planned.pop(step.plan.number)
        rows = array("I")
        for sequence, row in zip(step.sequences, step.plan.rows, strict=True):
            message = sequence.message
            decodes = row.count == 1 and row.start >= len(message.tokens)
            rows.append(message.number)
            rows.append(row.count | record.DECODE if decodes else row.count)
        for index, result in enumerate(results):
            if result.drafted:
                rows[2 * index + 1] = record.decode_word(result.drafted, max(0, len(result.tokens) - 1))
        blocks = [(u.held, u.shared, u.resting, u.cached, u.free) for u in queues.cache.usage()]
        start = planned.start
        spans = (planned.planned_us, micros(collected - start), micros(self._clock() - start))
        return record.pack(
            step.plan.number, start, spans, planned.waits, planned.state, blocks,
            planned.admissions, planned.preemptions, rows, _adapter_names(step.sequences),
        )  # fmt: skip

    def drop_steps(self) -> None:
        """No step in flight will be settled; their admissions and preemptions go into the next record."""
        open_steps = list(self._planned.values())
        self._admitted = [entry for planned in open_steps for entry in planned.admissions] + self._admitted
        self._preemptions = [entry for planned in open_steps for entry in planned.preemptions] + self._preemptions
        self._planned.clear()

    # --- inside

    def _totals(self, share: TenantShare) -> WaitTotals:
        if share.waits is None:
            share.waits = WaitTotals(self._clock())
        return share.waits

    def _waits(self, queues: SequenceQueues) -> tuple[int, ...]:
        """How many sequences wait, by reason."""
        ready, held = len(queues.ready), queues.num_held
        waiting = queues.num_waiting
        if not waiting:
            return NONE_WAIT
        loading = 0 if queues.adapters is None else len(queues.adapters)
        first = len(queues.ready.of_share(queues.ready.first.share)) if ready else 0
        counts = {record.CONSTRAINT: held, record.ADAPTER: loading, record.SHARE: ready - first}
        counts[record.PREFIX] = waiting - ready - held - loading
        counts[self._reason] = counts.get(self._reason, 0) + first
        return record.counts_by_reason(counts)

    def _charge(self, sequence: Sequence, waiting: WaitState, now: float) -> None:
        marks = self._totals(sequence.share).marks(now)
        for reason, (total, before) in enumerate(zip(marks, waiting.before, strict=True)):
            waiting.spent[reason] += max(0.0, total - before)

    def _explain(self, sequence: Sequence, hit: PrefixHit, queues: SequenceQueues) -> Finding:
        cache = queues.cache
        if sequence.skips_cache:
            return Finding(record.NOT_READ)
        if cache.history is None:
            return Finding(record.OFF)

        def running() -> RunningPrefixes:
            if self._running is None:
                self._running = queues.running_prefixes()
            return self._running

        return explain(sequence.chain, sequence.tokens, hit.tokens, cache.history, running)


def _adapter_names(sequences: Items[Sequence]) -> list[str]:
    """As in `record.StepRecord`."""
    adapters = [sequence.message.adapter for sequence in sequences]
    return [adapter.name if adapter is not None else "" for adapter in adapters] if any(adapters) else []
