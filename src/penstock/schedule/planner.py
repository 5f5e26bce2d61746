"""What the next step computes: who gets how many of its tokens.

There are no phases: every running sequence lets its computed tokens catch up with its known ones. Blocks and slots go by
policy order; of the token budget, those that lack a single token are served first, since theirs are the tokens somebody
is waiting to read; the rest goes to longer chunks, and what is then left admits new sequences.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.flow import Admit, Extend, Row, StepPlan
from penstock.schedule.roster import Roster
from penstock.schedule.sequence import Sequence


@dataclass(slots=True)
class Step:
    """A plan, and whose its rows are."""

    plan: StepPlan
    sequences: list[Sequence]  # [rows]


@dataclass(slots=True)
class Draft:
    """A plan in the making. What it grants is taken from the cache already, but noted nowhere else yet."""

    budget: int  # tokens left
    counts: dict[Sequence, int] = field(default_factory=dict)  # tokens granted
    admits: list[Admit] = field(default_factory=list)
    extends: list[Extend] = field(default_factory=list)
    blocks_short: bool = False  # a sequence waits for blocks: those behind it may not take any
    preempted: bool = False


class Planner:
    def __init__(self, roster: Roster, step_tokens: int) -> None:
        self._roster = roster
        self._step_tokens = step_tokens
        self.prefix_hit_tokens = 0
        self.prompt_tokens = 0

    def plan(self, number: int, now: float, in_flight: bool) -> Step | None:
        """The next step, taken note of in its sequences; None if there is nothing to compute."""
        draft = Draft(self._step_tokens)
        self._serve_running(draft, in_flight)
        if not draft.blocks_short and not draft.preempted:
            self._serve_ready(draft, now)
        return _issue(draft, number) if draft.counts else None

    def _serve_running(self, draft: Draft, in_flight: bool) -> None:
        running = self._roster.running
        lacking = [sequence.lacking for sequence in running]
        spare = max(0, self._step_tokens - lacking.count(1))  # for longer chunks
        for sequence, lack in zip(running, lacking, strict=False):  # preemption takes from the end of `running` only
            count = min(lack, draft.budget if lack == 1 else spare)
            if not count or not self._has_room(draft, sequence, sequence.computed + count, in_flight):
                continue
            if lack > 1:
                spare -= count
            draft.budget -= count
            draft.counts[sequence] = count

    def _has_room(self, draft: Draft, sequence: Sequence, tokens: int, in_flight: bool) -> bool:
        """Have blocks for `tokens`, if need be by preempting the last in policy order, which may be this one itself.

        While steps are in flight, what they are going to give back is waited for rather than preempted for. As the ones
        behind may take no blocks meanwhile, the wait is one of a single step.
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

    def _serve_ready(self, draft: Draft, now: float) -> None:
        roster = self._roster
        while draft.budget and roster.ready and roster.slots:
            sequence = roster.ready.first
            hit = roster.match(sequence)
            if roster.park(sequence, hit):
                continue
            if not roster.admit(sequence, hit, ahead=self._step_tokens):
                return  # nobody behind may overtake it: else it might never find enough blocks
            if sequence.admitted is None:
                sequence.admitted, sequence.cached = now, hit.tokens
                self.prefix_hit_tokens += hit.tokens
                self.prompt_tokens += sequence.prompt_length
            draft.admits.append(sequence.admit())
            draft.counts[sequence] = count = min(sequence.lacking, draft.budget)
            draft.budget -= count


def _issue(draft: Draft, number: int) -> Step:
    """Make the plan and move its sequences on to where it will leave them. Rows of one token come first."""
    plan = StepPlan(number, draft.admits, draft.extends, [])
    step = Step(plan, [])
    longer = [item for item in draft.counts.items() if item[1] > 1]
    singles = [item for item in draft.counts.items() if item[1] == 1]
    for sequence, count in singles + longer:
        sample = sequence.lacking == count
        plan.rows.append(Row(sequence.slot, sequence.computed, count, sample))
        step.sequences.append(sequence)
        sequence.computed += count
        sequence.pending += sample
        sequence.in_flight += 1
    return step
