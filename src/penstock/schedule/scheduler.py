"""The scheduler: sequences in, step plans out, results back in, Deltas out.

    submit, cancel ─► plan() ─► StepPlan ─► (the runner) ─► StepResult ─► settle() ─► Deltas

Its owner calls `plan` and `settle` in turn, with up to `lookahead` plans not yet settled when it calls `plan`. At depth
1 the newest token of a sequence is not known when its next row is planned; if it turns out to have ended the sequence,
that one row was surplus, and its result is dropped.

    plan = scheduler.plan()
    if plan:
        runner.launch(plan)
    due = scheduler.in_flight > (scheduler.lookahead if plan else 0)
    deltas = scheduler.settle(runner.collect()) if due else scheduler.drain()
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.cache import CacheManager, PrefixChain
from penstock.errors import ContextOverflow, InvalidRequest, OutOfMemory, PenstockError
from penstock.flow import Adapter, Cancel, Delta, FinishReason, Row, RowResult, StepPlan, StepResult, Submit, Timings
from penstock.schedule.adapter_line import AdapterLine, Residency
from penstock.schedule.deadlines import Deadlines
from penstock.schedule.pace import Pace
from penstock.schedule.planner import Planner, Step
from penstock.schedule.queue_policy import DEFAULT_OPTIONS, PolicyOptions, policy_by_name
from penstock.schedule.queues import SequenceQueues
from penstock.schedule.sequence import Sequence, State
from penstock.schedule.speculation import Speculation
from penstock.schedule.step_recorder import StepRecorder
from penstock.schedule.tenant_shares import TenantShares, cost_of
from penstock.schedule.views import Views
from penstock.schedule.waiting_bounds import WaitingBounds


class Scheduler:
    def __init__(
        self,
        cache: CacheManager,
        *,
        step_tokens: int,
        max_sequences: int,
        max_waiting: int,
        policy: str,
        lookahead: int,
        context: int,
        max_waiting_per_tenant: int | None = None,
        options: PolicyOptions = DEFAULT_OPTIONS,
        clock: Callable[[], float] = time.monotonic,
        recorded: bool = False,
        speculation: Speculation | None = None,
        adapters: Residency | None = None,
    ) -> None:
        """`recorded`: every step is packed into a `flow.record`, for `take_record`. `speculation`: None: no drafts.
        `adapters`: None: sequences with one are refused."""
        _check_capacity(cache, context, step_tokens)
        self.lookahead = lookahead
        self._context = context
        self._bounds = WaitingBounds(max_waiting, max_waiting_per_tenant)
        self._pace = Pace()
        self._policy = policy_by_name(policy, options, self._pace)
        self._measures = policy == "deadline"  # others do not estimate
        self._clock = clock
        self._recorder = StepRecorder(clock) if recorded else None
        self._record: bytes | None = None  # of the last step settled, until it is taken
        shares = TenantShares(fair=policy == "fair")
        line = None if adapters is None else AdapterLine(adapters)
        self._queues = SequenceQueues(cache, max_sequences, shares, options.ageing_s, self._recorder, line)
        self._speculation = speculation
        self._planner = Planner(self._queues, step_tokens, speculation)
        self.views = Views(self._queues, self._planner)
        self._steps: deque[Step] = deque()  # in flight, oldest first
        self._settled: float | None = None  # when the last step was, if there has been work since
        self._number = 0  # of the newest plan
        self._submitted = 0
        self._newest: Sequence | None = None  # submitted since the last plan
        self._output_tokens = 0
        self._deadlines = Deadlines(self._queues.sequences)
        self._deltas: list[Delta] = []  # not yet handed out

    # --- from the frontend

    def submit(self, message: Submit, *, held: bool = False) -> None:
        """Queue a sequence. Raises, and keeps nothing, if it is refused; see `refuse`. `held`: until `release`."""
        self._check(message)
        self._submitted += 1
        sequence = Sequence(
            message,
            rank=(*self._policy(message), self._submitted),
            share=self._queues.shares.join(message),
            limit=min(len(message.tokens) + message.max_output, self._context),
            chain=self._chain(message),
        )
        if self._speculation is not None:
            sequence.drafting = self._speculation.budget_for(message)
        self._newest = sequence
        self._queues.enqueue(sequence, held)
        self._deadlines.add(sequence)

    def release(self, id: str, error: PenstockError | None = None) -> None:
        """The constraint of a held sequence is compiled, or failed with `error`. An ended sequence is ignored."""
        sequence = self._queues.sequences.get(id)
        if sequence is None or not sequence.held:
            return
        if error is None:
            self._queues.release(sequence)
        else:
            self._finish(sequence, FinishReason.ERROR, self._clock(), error=error.message, code=error.code)

    def finish_load(self, adapter: Adapter, error: PenstockError | None) -> None:
        """An adapter is in memory, or could not be loaded: the sequences that wait for it go on or end."""
        assert self._queues.adapters is not None
        waiting = self._queues.adapters.finish_load(adapter)
        if error is not None:
            for sequence in waiting:
                self._finish(sequence, FinishReason.ERROR, self._clock(), error=error.message, code=error.code)

    def refuse(self, message: Submit, error: PenstockError) -> None:
        """Queue the terminal Delta of a message that `submit` raised for."""
        timings = Timings(message.arrival, None, None, self._clock())
        self._deltas.append(
            Delta(id=message.id, finish=FinishReason.ERROR, error=error.message, code=error.code, timings=timings)
        )

    def cancel(self, message: Cancel) -> None:
        """End a sequence; one that is unknown or has ended already is ignored."""
        sequence = self._queues.sequences.get(message.id)
        if sequence is None:
            return
        if message.at_output is not None:
            self._queues.truncate(sequence, sequence.prompt_length + max(0, message.at_output))
        self._finish(sequence, message.finish, self._clock())

    # --- the step

    def plan(self) -> StepPlan | None:
        """The next step to run; None if there is nothing to compute, or nothing until a step in flight is settled."""
        assert len(self._steps) <= self.lookahead, "settle() the oldest step first"
        now = self._clock()
        self._newest = None
        self._expire(now)
        step = self._planner.plan(self._number + 1, now, in_flight=bool(self._steps))
        if step is None:
            return None
        self._number += 1
        self._queues.begin_step(self._number)
        self._steps.append(step)
        if self._recorder is not None:
            self._recorder.begin_step(step, now, self._queues)
        return step.plan

    def settle(self, result: StepResult) -> list[Delta]:
        """Apply the result of the oldest step in flight; returns all Deltas, as `drain` does."""
        step = self._steps[0]
        assert result.number == step.plan.number, f"result {result.number} does not answer plan {step.plan.number}"
        self._steps.popleft()
        now = self._clock()
        self._queues.retire(result.number)
        if self._speculation is not None:
            # Planned ahead, steps overlap; else the host's work between two of them counts where there is look-ahead.
            began = step.planned if self._settled is None or not self.lookahead else self._settled
            self._speculation.settle(step.sequences, step.plan.rows, result.rows, now - began, step.ahead)
            if result.audited:
                self._speculation.add_audit(result.audited, result.mismatches)
        for sequence, row, outcome in zip(step.sequences, step.plan.rows, result.rows, strict=True):
            sequence.in_flight -= 1
            sequence.pending -= row.draws > 0
            if sequence.state is not State.FINISHED:
                self._settle_row(sequence, row, outcome, now)
            else:
                sequence.share.charge(-cost_of(row.tokens))  # the row was surplus
        self._settled = now if self._queues.running else None
        if self._measures:
            self._pace.add_step(step.planned, now, [row.count for row in step.plan.rows])
        self._expire(now)
        if self._recorder is not None:
            self._record = self._recorder.end_step(
                step, result.rows if self._speculation is not None else (), now, self._queues
            )
        return self.drain()

    def take_record(self) -> bytes | None:
        """The record of the step settled last, once."""
        taken, self._record = self._record, None
        return taken

    def drain(self) -> list[Delta]:
        """Deltas since the last `settle` or `drain`: of cancelled, timed out, refused and failed sequences."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def fail(self, message: str) -> None:
        """The runner has failed, and no step in flight will be settled. Ends all running sequences with an error."""
        now = self._clock()
        for step in self._steps:
            for sequence, row in zip(step.sequences, step.plan.rows, strict=True):
                sequence.share.charge(-cost_of(row.tokens))
        self._steps.clear()
        if self._recorder is not None:
            self._recorder.drop_steps()
        self._queues.retire(self._number)
        for sequence in list(self._queues.running):
            self._finish(sequence, FinishReason.ERROR, now, error=message)
        ready = {sequence.id for sequence in self._queues.ready}
        for sequence in self._queues.sequences.values():
            sequence.in_flight = sequence.pending = 0
            if sequence.drafting is not None:
                sequence.drafting.reserved = 0
            elsewhere = sequence.parked is not None or sequence.held or sequence.in_line
            if sequence.id not in ready and not elsewhere:
                self._queues.recover(sequence)  # preempted: its rows in flight are computed again

    def clear_cache(self) -> None:
        """The content of the KV blocks is lost. There must be no work."""
        assert not self.has_work
        self._queues.cache.clear()

    # --- reads

    @property
    def in_flight(self) -> int:
        """Plans that are not settled."""
        return len(self._steps)

    @property
    def has_work(self) -> bool:
        """Whether there is anything to plan, to settle or to drain."""
        return bool(self._queues.sequences or self._steps or self._deltas)

    @property
    def cache(self) -> CacheManager:
        """For blocks that no sequence holds (`Holding`)."""
        return self._queues.cache

    def stats(self) -> dict[str, Any]:
        """Gauges, and totals since the start. Output tokens count at the end of their sequence."""
        return {
            "running": len(self._queues.running),
            "waiting": self._queues.num_waiting,
            "in_flight": len(self._steps),
            "steps": self._number,
            "submitted": self._submitted,
            "preemptions": self._queues.preemptions,
            "prompt_tokens": self._planner.prompt_tokens,
            "prefix_hit_tokens": self._planner.prefix_hit_tokens,
            "output_tokens": self._output_tokens,
            "blocks": [usage._asdict() for usage in self._queues.cache.usage()],
            **({"speculation": self._speculation.stats()} if self._speculation is not None else {}),
        }

    def check_integrity(self) -> None:
        """Raise if the bookkeeping contradicts itself."""
        self._queues.check_integrity()
        rows = [pair for step in self._steps for pair in zip(step.sequences, step.plan.rows, strict=True)]
        for sequence in self._queues.sequences.values():
            own = [row for owner, row in rows if owner is sequence]
            if (sequence.in_flight, sequence.pending) != (len(own), sum(row.draws > 0 for row in own)):
                raise PenstockError(f"sequence {sequence.id} miscounts its rows in flight")

    # --- inside

    def _check(self, message: Submit) -> None:
        self._bounds.check(message.tenant, self._queues)
        if message.adapter is not None and self._queues.adapters is None:
            raise InvalidRequest("this engine takes no adapters: on a GPU they need adapter_memory", param="model")
        if message.id in self._queues.sequences:
            raise InvalidRequest(f"a sequence with id {message.id!r} is open already", param="id")
        embeds = message.task == "embed"
        field = "input" if embeds else "prompt"
        if not message.tokens:
            raise InvalidRequest(f"the {field} is empty", param=field)
        if message.max_output < 1 and not embeds:
            raise InvalidRequest("max_tokens must be at least 1", param="max_tokens")
        most = self._context if embeds else self._context - 1  # leaves room for output
        if len(message.tokens) > most:
            raise ContextOverflow(
                f"the {field} has {len(message.tokens)} tokens, but may have {most} in a context of {self._context}",
                param=field,
            )

    def _chain(self, message: Submit) -> PrefixChain:
        """The choices of a request are submitted one after the other: their prompt is hashed once."""
        cache, before = self._queues.cache, self._newest
        if (
            before is not None
            and cache.prefix_caching
            and message.choice == before.message.choice + 1  # else comparing thousands of tokens is wasted
            and (before.message.tenant, before.message.salt) == (message.tenant, message.salt)
            and before.message.adapter == message.adapter
            and before.message.tokens == message.tokens
        ):
            return before.chain.share(message.tokens)
        return cache.chain(message.tenant, message.salt, message.adapter)

    def _settle_row(self, sequence: Sequence, row: Row, outcome: RowResult, now: float) -> None:
        if outcome.prompt_logprobs:
            sequence.collect_prompt_logprobs(row.start, outcome.prompt_logprobs)
        if len(outcome.tokens) > 1:
            return self._settle_drafts(sequence, row, outcome, now)
        if sequence.table is not None:
            sequence.settled = row.start + row.count
            if sequence.settled >= sequence.table.due:
                self._queues.advance(sequence)
        elif not sequence.in_flight:
            self._queues.recover(sequence)
        if outcome.tokens:
            finish = self._append(sequence, outcome.tokens[0], outcome.finish)
            self._send(sequence, sequence.delta_of(outcome, 1), finish, now)
        elif outcome.embedding is not None:
            self._finish(sequence, FinishReason.END, now, Delta(id=sequence.id, embedding=outcome.embedding))
        elif outcome.finish is not None:
            self._finish(sequence, outcome.finish, now, sequence.delta_of(outcome, 0))
        return None

    def _settle_drafts(self, sequence: Sequence, row: Row, outcome: RowResult, now: float) -> None:
        """Of several tokens, all but the last were drafted: their positions are computed. Those behind the end of the
        sequence are dropped."""
        count, finish, last = 0, None, len(outcome.tokens) - 1
        while finish is None and count <= last:
            finish = self._append(sequence, outcome.tokens[count], outcome.finish if count == last else None)
            count += 1
        if sequence.table is not None:
            sequence.settled = row.start + row.count + count - 1
            sequence.computed += count - 1
            if sequence.settled >= sequence.table.due:
                self._queues.advance(sequence)
        elif not sequence.in_flight:
            self._queues.recover(sequence)
        self._send(sequence, sequence.delta_of(outcome, count), finish, now)

    def _append(self, sequence: Sequence, token: int, finish: FinishReason | None) -> FinishReason | None:
        """Append a new token; gives how it ends the sequence, if it does. `finish`: its constraint does."""
        sequence.tokens.append(token)
        finish = sequence.stops.get(token, finish)
        if finish is None and len(sequence.tokens) == sequence.limit:
            return FinishReason.CONTEXT if sequence.limit == self._context else FinishReason.LENGTH
        return finish

    def _send(self, sequence: Sequence, delta: Delta, finish: FinishReason | None, now: float) -> None:
        if sequence.first_token is None:
            sequence.first_token = now
        if finish is None:
            self._deltas.append(delta)
        else:
            self._finish(sequence, finish, now, delta)

    def _finish(
        self,
        sequence: Sequence,
        finish: FinishReason,
        now: float,
        delta: Delta | None = None,
        *,
        error: str | None = None,
        code: str | None = None,
    ) -> None:
        """End a sequence; `delta` has its last tokens, if there are any."""
        self._queues.remove(sequence)
        output_tokens = len(sequence.tokens) - sequence.prompt_length
        self._output_tokens += output_tokens
        self._pace.add_output(output_tokens)
        delta = delta or Delta(id=sequence.id, cached_tokens=sequence.cached or 0)
        delta.finish, delta.error, delta.code, delta.timings = finish, error, code, sequence.timings(now)
        self._deltas.append(delta)

    def _expire(self, now: float) -> None:
        for sequence in self._deadlines.expired(now):
            self._finish(sequence, FinishReason.TIMEOUT, now)


def _check_capacity(cache: CacheManager, context: int, step_tokens: int) -> None:
    """One sequence alone must always be able to fill the context."""
    demand = cache.required_blocks(context, step_tokens)
    for window, usage, needed in zip(cache.windows, cache.usage(), demand, strict=True):
        if usage.total < needed:
            view = f"layers with a window of {window}" if window else "layers with full attention"
            raise OutOfMemory(
                f"one sequence of {context} tokens needs {needed} KV blocks of {cache.block_size} tokens in the "
                f"{view}, and there is memory for {usage.total}: {needed - usage.total} are missing; raise kv_memory "
                "or memory_fraction, or lower context",
                param="kv_memory",
            )
