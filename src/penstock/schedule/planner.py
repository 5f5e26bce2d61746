"""Plans the next step: how many tokens of each sequence it computes (continuous batching with chunked prefill).

There are no phases: every running sequence lets its computed tokens catch up with its known ones. Blocks and slots go
by policy order. The token budget goes first to sequences with a single token to compute, since their clients wait for
the next one; then to longer chunks; what is left admits new sequences.

Several tenants take turns, the least served first (`tenant_shares`). This holds within each of the three parts, and a
tenant's new sequences go before the longer chunks of tenants after it. A tenant that waits for a slot or blocks may
take those of a tenant that was served more (`fair_preemption`).

Background sequences (of batches) come last in policy order. A step with foreground rows computes few background
tokens. A foreground sequence that finds no slot or blocks takes those of a background sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from math import ceil

from penstock.cache import BlockTable
from penstock.flow import Admit, Extend, Row, StepPlan, record
from penstock.schedule.fair_preemption import blocks_held, choose_victim, slots_held
from penstock.schedule.queues import SequenceQueues
from penstock.schedule.sequence import Sequence
from penstock.schedule.speculation import Speculation
from penstock.schedule.tenant_shares import ROW_COST, TenantShare

# Beside foreground rows, background rows get as many tokens as those, but at least this share of the step's budget: a
# few rows on a CPU, where each costs time, and a hundred on a GPU, where they cost little.
BACKGROUND_SHARE = 1 / 128
WAITING_SHARE = 1 / 4  # of the running sequences: if so many wait to get drafts, no step is planned ahead


@dataclass(slots=True)
class Step:
    """A plan, and the sequence of each row."""

    plan: StepPlan
    sequences: list[Sequence]  # [rows]
    planned: float  # when
    ahead: bool = False  # before the last step was settled


@dataclass(slots=True)
class PlanBuilder:
    """The rows, admissions and table extensions of a step, while they are chosen."""

    budget: int  # tokens left
    background_budget: int  # of those, for background sequences
    admits: list[Admit] = field(default_factory=list)
    extends: list[Extend] = field(default_factory=list)
    singles: list[tuple[Sequence, Row]] = field(default_factory=list)
    longer: list[tuple[Sequence, Row]] = field(default_factory=list)
    blocks_short: bool = False  # a sequence waits for blocks: those behind it may not allocate any
    preempted: bool = False

    @property
    def cost(self) -> int:
        """Of the rows so far, less a constant: see `tenant_shares`."""
        return ROW_COST * (len(self.singles) + len(self.longer)) - self.budget

    def tokens_for(self, sequence: Sequence) -> int:
        """Tokens left for this sequence."""
        return min(self.budget, self.background_budget) if sequence.background else self.budget

    def limit_background(self, step_tokens: int) -> None:
        """Background sequences get no more tokens than the rows so far, but the least share of the step's budget."""
        tokens = sum(row.count for _, row in chain(self.singles, self.longer))
        self.background_budget = max(tokens, ceil(step_tokens * BACKGROUND_SHARE))

    def add_row(self, sequence: Sequence, count: int, uncomputed: int, drafts: int = 0) -> None:
        """Give the sequence a row of `count` tokens and up to `drafts` drafted ones, and advance it.

        A row is never taken back: rows are added in policy order, and preemption takes victims from the other end.
        """
        draws = 1 + drafts if count == uncomputed and not sequence.embeds else 0
        row = Row(sequence.slot, sequence.computed, count, draws)
        (self.singles if count == 1 else self.longer).append((sequence, row))
        tokens = count + drafts
        self.budget -= tokens
        if sequence.background:
            self.background_budget -= tokens
        sequence.computed += count
        if draws:
            sequence.pending += 1
        sequence.in_flight += 1

    def build(self, number: int, now: float, ahead: bool) -> Step | None:
        """The plan, rows of one token first; None if there are no rows."""
        rows = self.singles + self.longer
        if not rows:
            return None
        plan = StepPlan(number, self.admits, self.extends, [row for _, row in rows])
        return Step(plan, [sequence for sequence, _ in rows], now, ahead)


class Planner:
    def __init__(self, queues: SequenceQueues, step_tokens: int, speculation: Speculation | None = None) -> None:
        """`speculation`: how many tokens may be drafted; None: none."""
        self._queues = queues
        self._speculation = speculation
        self._step_tokens = step_tokens
        self._stuck: tuple[Sequence, int] | None = None  # it found too few blocks at this value of `cache.freed`
        self._yielded = 0  # the last step before which a sequence was preempted for one that waits
        self.prompt_tokens = 0  # of all sequences ever admitted
        self.prefix_hit_tokens = 0  # of those, found in the cache

    def plan(self, number: int, now: float, in_flight: bool) -> Step | None:
        """The next step; None if there is nothing to compute. `in_flight`: whether earlier steps are not settled."""
        queues = self._queues
        if in_flight and self._speculation is not None and self._waits_for_drafts():
            return None
        queues.reorder(now)
        queues.load_adapters()
        self._yield_to_foreground(number)
        if queues.shares.num_active > 1:
            self._yield_to_tenant(number)
        groups = queues.running.groups
        counts = [[sequence.uncomputed for sequence in group] for _, group in groups]
        plan = PlanBuilder(self._step_tokens, self._step_tokens)
        self._schedule_running(plan, groups, counts, now, in_flight)
        short = plan.blocks_short or plan.preempted or not self._admit_ready(plan, now)
        queues.load_adapters()
        if queues.recorder is not None:
            queues.recorder.note_blocked(self._wait_reason(plan, short), queues.ready.shares, now)
        return plan.build(number, now, in_flight)

    def _waits_for_drafts(self) -> bool:
        """Whether so many sequences wait for the step in flight that the others should wait too. Otherwise two groups
        would take turns, and the waiting sequences would have a row in every second step only."""
        running = self._queues.running
        waiting = sum(one.drafting is not None and one.pending > 0 and one.drafting.waits for one in running)
        return waiting > 0 and waiting >= WAITING_SHARE * len(running)

    def _wait_reason(self, plan: PlanBuilder, blocks_short: bool) -> int:
        """Why the first in the queue was not admitted: an index in `record.WAITS`."""
        if not self._queues.ready:
            return record.STEP
        if blocks_short:
            return record.BLOCKS
        return record.SLOT if plan.tokens_for(self._queues.ready.first) else record.BUDGET

    def _yield_to_foreground(self, number: int) -> None:
        """Preempt a background sequence if a foreground one is first in the queue and finds no slot or no blocks; at
        most one in two steps, since what it held rests for a step."""
        ready, running = self._queues.ready, self._queues.running
        if not ready or not running or ready.first.background or not running.last.background:
            return
        short = not self._queues.slots.unused() or self._stuck == (ready.first, self._queues.cache.freed)
        if short and number > self._yielded + 1:
            self._yielded = number
            self._queues.preempt(running.last, record.BLOCKS if self._queues.slots.unused() else record.SLOT)

    def _yield_to_tenant(self, number: int) -> None:
        """Preempt a sequence of another tenant if the first in the queue finds no slot or no blocks, and its tenant is
        owed more of them; as often as `_yield_to_foreground`."""
        queues = self._queues
        if not queues.ready or number <= self._yielded + 1:
            return
        first, slots = queues.ready.first, queues.slots
        if not slots.unused():
            victim = choose_victim(first.share, queues.running, queues.shares, slots.count, slots_held)
        elif self._stuck == (first, queues.cache.freed):
            total = blocks_held(list(queues.running))
            victim = choose_victim(first.share, queues.running, queues.shares, total, blocks_held)
        else:
            return
        if victim is not None:
            self._yielded = number
            queues.preempt(victim, record.SHARE)

    def _limits_background(self) -> bool:
        """Whether there are both foreground and background sequences."""
        queues = [queue for queue in (self._queues.running, self._queues.ready) if queue]
        foreground = any(not queue.first.background for queue in queues)
        return foreground and any(queue.last.background for queue in queues)

    def _schedule_running(
        self,
        plan: PlanBuilder,
        groups: list[tuple[TenantShare, list[Sequence]]],
        counts: list[list[int]],
        now: float,
        in_flight: bool,
    ) -> None:
        """Give running sequences their rows. `counts` are the uncomputed tokens of the `groups`."""
        # For chunks of more than one token:
        singles = sum(one.count(1) for one in counts)
        chunk_budget = max(0, self._step_tokens - singles)
        add_row, speculation = plan.add_row, self._speculation
        costs = []  # charged at the end: counters, and so the order, do not change before
        limited = self._limits_background()
        for (share, group), uncomputed_counts in zip(groups, counts, strict=True):
            if chunk_budget and self._goes_before(plan, share):
                chunk_budget -= self._admit_before(share, plan, chunk_budget, now)
            cost = plan.cost
            # A preemption shortens the group at its end.
            for sequence, uncomputed in zip(group, uncomputed_counts, strict=False):
                count = min(uncomputed, plan.budget if uncomputed == 1 else chunk_budget)
                if sequence.background:
                    if limited:  # they come last: all foreground rows are there
                        plan.limit_background(self._step_tokens)
                        limited = False
                    count = min(count, plan.background_budget)
                if not count:
                    continue
                table, tokens = sequence.table, sequence.computed + count
                assert table is not None
                if tokens <= table.capacity or self._allocate(plan, sequence, table, tokens, in_flight):
                    if uncomputed > 1:
                        chunk_budget -= count
                    elif speculation is not None and sequence.drafting is not None:
                        wanted = min(speculation.most_drafts(sequence, singles), chunk_budget)
                        drafts = self._reserve_drafts(plan, sequence, table, wanted)
                        chunk_budget -= drafts
                        add_row(sequence, 1, 1, drafts)
                        continue
                    add_row(sequence, count, uncomputed)
            costs.append(plan.cost - cost)
        if limited:
            plan.limit_background(self._step_tokens)
        for (share, _), cost in zip(groups, costs, strict=True):
            share.charge(cost)
        self._queues.ready.reorder()

    def _goes_before(self, plan: PlanBuilder, share: TenantShare) -> bool:
        """Whether the first queued sequence, of another tenant, goes before running ones of this share."""
        ready = self._queues.ready
        if not ready or plan.blocks_short or plan.preempted:
            return False
        first = ready.first.share
        return first.key < share.key and not share.background

    def _admit_before(self, share: TenantShare, plan: PlanBuilder, tokens: int, now: float) -> int:
        """Admit sequences of tenants before this share, with up to `tokens`; returns how many were used."""
        before = plan.budget
        plan.budget = tokens
        self._admit_ready(plan, now, share)
        used = tokens - plan.budget
        plan.budget = before - used
        return used

    def _allocate(self, plan: PlanBuilder, sequence: Sequence, table: BlockTable, tokens: int, in_flight: bool) -> bool:
        """Allocate blocks for `tokens`, if necessary by preempting the last in policy order, which may be this one.

        While steps in flight are going to free enough blocks, it waits for them instead of preempting. Those behind it
        may not allocate meanwhile, so the blocks are there a step or two later.
        """
        cache, running = self._queues.cache, self._queues.running
        if plan.blocks_short:
            return False
        while (new_blocks := cache.extend(table, tokens)) is None:
            if in_flight and cache.will_fit(table, tokens, sequence.computed):
                plan.blocks_short = True
                return False
            victim = running.last
            assert victim is not running.first, "the cache is too small for one sequence"
            self._queues.preempt(victim, record.BLOCKS)
            plan.preempted = True
            if victim is sequence:
                return False
        plan.extends += [Extend(sequence.slot, group, new) for group, new in enumerate(new_blocks) if new]
        return True

    def _reserve_drafts(self, plan: PlanBuilder, sequence: Sequence, table: BlockTable, drafts: int) -> int:
        """Blocks for up to this many drafts behind the next token, if there are any to spare; gives for how many."""
        drafts = min(drafts, sequence.most_drafts)
        if sequence.background:
            drafts = min(drafts, plan.background_budget - 1)
        tokens = sequence.computed + 1 + drafts
        if tokens > table.capacity and drafts > 0:
            spare = not (plan.blocks_short or plan.preempted)
            new_blocks = self._queues.cache.extend(table, tokens) if spare else None
            if new_blocks is None:
                drafts = table.capacity - sequence.computed - 1
            else:
                plan.extends += [Extend(sequence.slot, group, new) for group, new in enumerate(new_blocks) if new]
        assert sequence.drafting is not None
        sequence.drafting.reserved = max(0, drafts)
        return sequence.drafting.reserved

    def _admit_ready(self, plan: PlanBuilder, now: float, before: TenantShare | None = None) -> bool:
        """Admit in policy order, those of shares `before` this one or (None) all; False if blocks were short. No
        sequence overtakes one that waits for blocks: else it might never find enough."""
        queues = self._queues
        while queues.ready and queues.slots and plan.tokens_for(queues.ready.first):
            sequence, cost = queues.ready.first, plan.cost
            if before is not None and sequence.share.key >= before.key:
                return True
            if self._stuck == (sequence, queues.cache.freed):
                return False
            if queues.wait_for_adapter(sequence):
                continue
            hit = queues.lookup_prefix(sequence)
            if queues.park(sequence, hit):
                continue
            # Running sequences that come later in this step must find blocks for all of its tokens.
            reserve = 0 if before is None else -(-plan.budget // queues.cache.block_size)
            if not queues.admit(sequence, hit, self._step_tokens, reserve):
                self._stuck = (sequence, queues.cache.freed) if before is None else self._stuck
                return False
            if sequence.admitted is None:
                sequence.admitted, sequence.cached = now, hit.tokens
                self.prompt_tokens += sequence.prompt_length
                self.prefix_hit_tokens += hit.tokens
            plan.admits.append(sequence.admit())
            plan.add_row(sequence, min(sequence.uncomputed, plan.tokens_for(sequence)), sequence.uncomputed)
            sequence.share.charge(plan.cost - cost)
            queues.ready.move(sequence.share)
        return True
