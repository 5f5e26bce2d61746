"""Writes down what the scheduler does, one packed record per step (`flow.record`), for whoever watches.

What a sequence waited for is kept without looking at those that wait: there is one running total per reason, which
every plan adds to, and a sequence notes where the totals stood when it got in line.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.cache import Hit
from penstock.cache.explain import Kin, explain
from penstock.flow import record
from penstock.flow.record import Finding, LetIn, micros
from penstock.schedule.sequence import Sequence

if TYPE_CHECKING:
    from penstock.schedule.planner import Step
    from penstock.schedule.queues import Roster


@dataclass(slots=True)
class Waiting:
    """A sequence in line."""

    since: float
    before: tuple[float, ...]  # the totals when it last began to wait in line, less what had passed of the plan then
    ahead: int
    admissions: int  # of others, when it came
    spent: list[float] = field(default_factory=lambda: [0.0] * len(record.WAITS))  # seconds, of earlier stretches
    aside: tuple[int, float] | None = None  # not in line: for what, and since when


@dataclass(slots=True)
class Notes:
    """Of a step that has been planned."""

    start: float
    planned_us: int
    state: tuple[int, int, int, int, int, int]
    let_in: list[bytes]
    sent_back: list[tuple[int, int]]


class Recorder:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._totals = [0.0] * len(record.WAITS)
        self._reason = record.STEP  # why the first in line was not let in by the last plan
        self._since = clock()  # that plan
        self._admissions = 0
        self._kin: Kin | None = None  # of those that run, while a plan is made
        self._let_in: list[bytes] = []  # since a step was last planned
        self._sent_back: list[tuple[int, int]] = []
        self._notes: dict[int, Notes] = {}  # by step

    # --- of a sequence

    def lined_up(self, sequence: Sequence, ahead: int) -> None:
        now = self._clock()
        sequence.waiting = Waiting(now, self._marks(now), ahead, self._admissions)

    def set_aside(self, sequence: Sequence, reason: int) -> None:
        """Not in line any more: it waits for a prefix or for its constraint."""
        if (waiting := sequence.waiting) is not None:
            now = self._clock()
            self._charge(waiting, now)
            waiting.aside = (reason, now)

    def back_in_line(self, sequence: Sequence, ahead: int) -> None:
        waiting = sequence.waiting
        if waiting is not None and waiting.aside is not None:
            now = self._clock()
            reason, since = waiting.aside
            waiting.spent[reason] += now - since
            waiting.before, waiting.aside = self._marks(now), None
            if reason == record.CONSTRAINT:
                waiting.ahead, waiting.admissions = ahead, self._admissions

    def admitted(self, sequence: Sequence, hit: Hit, roster: Roster) -> None:
        waiting = sequence.waiting
        if waiting is None:
            return
        now = self._clock()
        self._charge(waiting, now)
        overtaken = max(0, self._admissions - waiting.admissions - waiting.ahead)
        self._admissions += 1
        waits_us = tuple(map(micros, waiting.spent))
        finding = self._find(sequence, hit, roster) if sequence.admitted is None else Finding()
        if self._kin is not None:
            self._kin.add(sequence.chain, sequence.tokens, hit.tokens)
        entry = LetIn(sequence.message.number, waiting.since, hit.tokens, waits_us, waiting.ahead, overtaken, finding)
        self._let_in.append(record.pack_let_in(entry))
        sequence.waiting = None

    def preempted(self, sequence: Sequence) -> None:
        self._sent_back.append((sequence.message.number, record.BLOCKS))
        self.lined_up(sequence, 0)

    # --- of a step

    def blocked(self, reason: int, now: float) -> None:
        """A plan was made: why the first in line could not come along."""
        self._totals[self._reason] += now - self._since
        self._reason, self._since = reason, now
        self._kin = None

    def planned(self, step: Step, start: float, roster: Roster) -> None:
        recall = roster.cache.recall
        state = (
            len(roster.running),
            roster.num_waiting,
            roster.num_waiting - len(roster.ready) - roster.num_held,
            roster.num_held,
            recall.evictions if recall is not None else 0,
            self._reason,
        )
        self._notes[step.plan.number] = Notes(
            start, micros(self._clock() - start), state, self._let_in, self._sent_back
        )
        self._let_in, self._sent_back = [], []

    def settled(self, step: Step, collected: float, roster: Roster) -> bytes:
        notes = self._notes.pop(step.plan.number)
        rows = array("I")
        for sequence, row in zip(step.sequences, step.plan.rows, strict=True):
            message = sequence.message
            decodes = row.count == 1 and row.start >= len(message.tokens)
            rows.append(message.number)
            rows.append(row.count | record.DECODE if decodes else row.count)
        blocks = [(u.held, u.shared, u.resting, u.cached, u.free) for u in roster.cache.usage()]
        start = notes.start
        spans = (notes.planned_us, micros(collected - start), micros(self._clock() - start))
        return record.pack(step.plan.number, start, spans, notes.state, blocks, notes.let_in, notes.sent_back, rows)

    def dropped(self) -> None:
        """No step in flight will be settled; what was decided with them stands."""
        lost = list(self._notes.values())
        self._let_in = [entry for notes in lost for entry in notes.let_in] + self._let_in
        self._sent_back = [entry for notes in lost for entry in notes.sent_back] + self._sent_back
        self._notes.clear()

    # --- inside

    def _marks(self, now: float) -> tuple[float, ...]:
        """The totals as they stand now, though the next plan only will add the time since the last one."""
        marks = self._totals.copy()
        marks[self._reason] += now - self._since
        return tuple(marks)

    def _charge(self, waiting: Waiting, now: float) -> None:
        for reason, (total, before) in enumerate(zip(self._marks(now), waiting.before, strict=True)):
            waiting.spent[reason] += max(0.0, total - before)

    def _find(self, sequence: Sequence, hit: Hit, roster: Roster) -> Finding:
        cache = roster.cache
        if sequence.reads_nothing:
            return Finding(record.NOT_READ)
        if cache.recall is None:
            return Finding(record.OFF)

        def kin() -> Kin:
            if self._kin is None:
                self._kin = roster.kin()
            return self._kin

        return explain(sequence.chain, sequence.tokens, hit.tokens, cache.recall, kin)
