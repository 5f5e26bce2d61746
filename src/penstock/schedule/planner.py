"""What the next step computes: who gets how many of its tokens.

There are no phases: every running sequence lets its computed tokens catch up with its known ones. Blocks and slots go
by policy order. Of the token budget, those that lack a single token are served first, for somebody is waiting to read
what comes next; the rest goes to longer chunks, and what is then left admits new sequences.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.flow import Admit, Extend, Row, StepPlan, record
from penstock.schedule.queues import Roster
from penstock.schedule.sequence import Sequence


@dataclass(slots=True)
class Step:
    """A plan, and whose its rows are."""

    plan: StepPlan
    sequences: list[Sequence]  # [rows]


@dataclass(slots=True)
class Draft:
    """A plan in the making."""

    budget: int  # tokens left
    admits: list[Admit] = field(default_factory=list)
    extends: list[Extend] = field(default_factory=list)
    singles: list[tuple[Sequence, Row]] = field(default_factory=list)
    longer: list[tuple[Sequence, Row]] = field(default_factory=list)
    blocks_short: bool = False  # a sequence waits for blocks: those behind it may not take any
    preempted: bool = False

    def grant(self, sequence: Sequence, count: int, lacking: int) -> None:
        """Give it a row, and move it on to where that will leave it.

        This is never taken back: rows are granted in policy order, and victims of preemption come from its other end.
        """
        sample = count == lacking and not sequence.embeds
        row = Row(sequence.slot, sequence.computed, count, sample)
        (self.singles if count == 1 else self.longer).append((sequence, row))
        self.budget -= count
        sequence.computed += count
        sequence.pending += sample
        sequence.in_flight += 1

    def issue(self, number: int) -> Step | None:
        """The plan as it stands, rows of one token first; None if nobody was granted any."""
        rows = self.singles + self.longer
        if not rows:
            return None
        plan = StepPlan(number, self.admits, self.extends, [row for _, row in rows])
        return Step(plan, [sequence for sequence, _ in rows])


class Planner:
    def __init__(self, roster: Roster, step_tokens: int) -> None:
        self._roster = roster
        self._step_tokens = step_tokens
        self._stuck: tuple[Sequence, int] | None = None  # found no blocks when the cache had freed that many
        self.prompt_tokens = 0  # of all sequences ever admitted
        self.prefix_hit_tokens = 0  # of those, found in the cache

    def plan(self, number: int, now: float, in_flight: bool) -> Step | None:
        """The next step; None if there is nothing to compute. `in_flight`: whether earlier steps are not settled."""
        draft = Draft(self._step_tokens)
        self._serve_running(draft, in_flight)
        short = draft.blocks_short or draft.preempted or not self._serve_ready(draft, now)
        if self._roster.recorder is not None:
            self._roster.recorder.blocked(self._blocked(draft, short), now)
        return draft.issue(number)

    def _blocked(self, draft: Draft, blocks_short: bool) -> int:
        """Why the first in line was not let in: an index in `record.WAITS`."""
        if not self._roster.ready:
            return record.STEP
        if blocks_short:
            return record.BLOCKS
        return record.BUDGET if not draft.budget else record.SLOT

    def _serve_running(self, draft: Draft, in_flight: bool) -> None:
        running = self._roster.running
        lacks = [sequence.lacking for sequence in running]
        spare = max(0, self._step_tokens - lacks.count(1))  # for longer chunks
        for sequence, lacking in zip(running, lacks, strict=False):  # a preemption shortens `running`, at its end
            count = min(lacking, draft.budget if lacking == 1 else spare)
            if count and self._has_room(draft, sequence, sequence.computed + count, in_flight):
                draft.grant(sequence, count, lacking)
                if lacking > 1:
                    spare -= count

    def _has_room(self, draft: Draft, sequence: Sequence, tokens: int, in_flight: bool) -> bool:
        """Have blocks for `tokens`, if need be by preempting the last in policy order, which may be this one itself.

        While steps are in flight, what they are going to give back is waited for rather than preempted for. Those
        behind may take no blocks meanwhile, so it is there a step or two later.
        """
        table, cache, running = sequence.table, self._roster.cache, self._roster.running
        assert table is not None
        if tokens <= table.capacity:
            return True
        if draft.blocks_short:
            return False
        while (news := cache.extend(table, tokens)) is None:
            if in_flight and cache.will_fit(table, tokens, sequence.computed):
                draft.blocks_short = True
                return False
            victim = running.last
            assert victim is not running.first, "the cache is too small for one sequence"
            self._roster.preempt(victim)
            draft.preempted = True
            if victim is sequence:
                return False
        draft.extends += [Extend(sequence.slot, group, new) for group, new in enumerate(news) if new]
        return True

    def _serve_ready(self, draft: Draft, now: float) -> bool:
        """Admit in policy order; False if blocks were short. Nobody overtakes one that finds none: else it might never
        find enough."""
        roster = self._roster
        while draft.budget and roster.ready and roster.slots:
            sequence = roster.ready.first
            if self._stuck == (sequence, roster.cache.freed):
                return False
            hit = roster.match(sequence)
            if roster.park(sequence, hit):
                continue
            if not roster.admit(sequence, hit, ahead=self._step_tokens):
                self._stuck = (sequence, roster.cache.freed)
                return False
            if sequence.admitted is None:
                sequence.admitted, sequence.cached = now, hit.tokens
                self.prompt_tokens += sequence.prompt_length
                self.prefix_hit_tokens += hit.tokens
            draft.admits.append(sequence.admit())
            draft.grant(sequence, min(sequence.lacking, draft.budget), sequence.lacking)
        return True
