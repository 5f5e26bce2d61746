"""Records what the scheduler does: one packed record per step (`flow.record`), for observers.

Wait times by reason cost nothing per waiting sequence: there is one running total per reason, which every plan adds to,
and a sequence keeps the totals as of when it was queued.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.cache import PrefixHit
from penstock.cache.explain import RunningPrefixes, explain
from penstock.flow import record
from penstock.flow.record import Admission, Finding, micros
from penstock.schedule.sequence import Sequence

if TYPE_CHECKING:
    from penstock.schedule.planner import Step
    from penstock.schedule.queues import SequenceQueues


@dataclass(slots=True)
class WaitState:
    """Of a sequence that waits."""

    since: float
    before: tuple[float, ...]  # the totals when it was last queued, with the time since the last plan
    ahead: int  # sequences before it in the queue when it was queued
    admissions: int  # of all sequences, up to when it was queued
    spent: list[float] = field(default_factory=lambda: [0.0] * len(record.WAITS))  # seconds, of earlier stretches
    aside: tuple[int, float] | None = None  # parked or held: for what reason, and since when


@dataclass(slots=True)
class PlannedStep:
    """What the record of a step in flight will say of its plan."""

    start: float
    planned_us: int
    state: tuple[int, int, int, int, int, int]
    admissions: list[bytes]
    preemptions: list[tuple[int, int]]


class StepRecorder:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._totals = [0.0] * len(record.WAITS)
        self._reason = record.STEP  # why the last plan did not admit the first in the queue
        self._since = clock()  # that plan
        self._admissions = 0
        self._running: RunningPrefixes | None = None  # while a plan is made
        self._admitted: list[bytes] = []  # packed, since the last planned step
        self._preemptions: list[tuple[int, int]] = []
        self._planned: dict[int, PlannedStep] = {}  # by step

    # --- sequences

    def enqueue(self, sequence: Sequence, ahead: int) -> None:
        now = self._clock()
        sequence.waiting = WaitState(now, self._marks(now), ahead, self._admissions)

    def set_aside(self, sequence: Sequence, reason: int) -> None:
        """It leaves the queue to wait for a prefix or for its constraint."""
        if (waiting := sequence.waiting) is not None:
            now = self._clock()
            self._charge(waiting, now)
            waiting.aside = (reason, now)

    def requeue(self, sequence: Sequence, ahead: int) -> None:
        waiting = sequence.waiting
        if waiting is not None and waiting.aside is not None:
            now = self._clock()
            reason, since = waiting.aside
            waiting.spent[reason] += now - since
            waiting.before, waiting.aside = self._marks(now), None
            if reason == record.CONSTRAINT:
                waiting.ahead, waiting.admissions = ahead, self._admissions

    def admit(self, sequence: Sequence, hit: PrefixHit, queues: SequenceQueues) -> None:
        waiting = sequence.waiting
        if waiting is None:
            return
        now = self._clock()
        self._charge(waiting, now)
        overtaken = max(0, self._admissions - waiting.admissions - waiting.ahead)
        self._admissions += 1
        waits_us = tuple(map(micros, waiting.spent))
        finding = self._explain(sequence, hit, queues) if sequence.admitted is None else Finding()
        if self._running is not None:
            self._running.add(sequence.chain, sequence.tokens, hit.tokens)
        entry = Admission(
            sequence.message.number, waiting.since, hit.tokens, waits_us, waiting.ahead, overtaken, finding
        )
        self._admitted.append(record.pack_admission(entry))
        sequence.waiting = None

    def preempt(self, sequence: Sequence) -> None:
        self._preemptions.append((sequence.message.number, record.BLOCKS))
        self.enqueue(sequence, 0)

    # --- steps

    def note_blocked(self, reason: int, now: float) -> None:
        """After a plan: why the first in the queue was not admitted."""
        self._totals[self._reason] += now - self._since
        self._reason, self._since = reason, now
        self._running = None

    def begin_step(self, step: Step, start: float, queues: SequenceQueues) -> None:
        history = queues.cache.history
        state = (
            len(queues.running),
            queues.num_waiting,
            queues.num_waiting - len(queues.ready) - queues.num_held,
            queues.num_held,
            history.evictions if history is not None else 0,
            self._reason,
        )
        self._planned[step.plan.number] = PlannedStep(
            start, micros(self._clock() - start), state, self._admitted, self._preemptions
        )
        self._admitted, self._preemptions = [], []

    def end_step(self, step: Step, collected: float, queues: SequenceQueues) -> bytes:
        planned = self._planned.pop(step.plan.number)
        rows = array("I")
        for sequence, row in zip(step.sequences, step.plan.rows, strict=True):
            message = sequence.message
            decodes = row.count == 1 and row.start >= len(message.tokens)
            rows.append(message.number)
            rows.append(row.count | record.DECODE if decodes else row.count)
        blocks = [(u.held, u.shared, u.resting, u.cached, u.free) for u in queues.cache.usage()]
        start = planned.start
        spans = (planned.planned_us, micros(collected - start), micros(self._clock() - start))
        return record.pack(
            step.plan.number, start, spans, planned.state, blocks, planned.admissions, planned.preemptions, rows
        )

    def drop_steps(self) -> None:
        """No step in flight will be settled; their admissions and preemptions go into the next record."""
        open_steps = list(self._planned.values())
        self._admitted = [entry for planned in open_steps for entry in planned.admissions] + self._admitted
        self._preemptions = [entry for planned in open_steps for entry in planned.preemptions] + self._preemptions
        self._planned.clear()

    # --- inside

    def _marks(self, now: float) -> tuple[float, ...]:
        """The totals as of now: with the time since the last plan, which the next plan will add."""
        marks = self._totals.copy()
        marks[self._reason] += now - self._since
        return tuple(marks)

    def _charge(self, waiting: WaitState, now: float) -> None:
        for reason, (total, before) in enumerate(zip(self._marks(now), waiting.before, strict=True)):
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
