"""A scheduler, the simulated device, a clock and some clients, and what must be true of them at any time."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from penstock.adapters import AdapterCache
from penstock.cache import CacheManager, EvictionHistory
from penstock.errors import AdapterLoadFailed, PenstockError
from penstock.flow import (
    Adapter,
    Cancel,
    Delta,
    FinishReason,
    Pooling,
    Row,
    RowResult,
    SamplingParams,
    StepPlan,
    Submit,
    record,
)
from penstock.flow.record import Admission, Preemption
from penstock.schedule import Scheduler
from penstock.schedule.queue_policy import DEFAULT_OPTIONS, PolicyOptions
from penstock.schedule.sequence import Sequence, State
from penstock.schedule.speculation import DraftBudget
from penstock.store.spec import CacheGroup
from simulation.device import Device, draw, embed, logprob_of, marks_of

UNREAD = {record.NONE, record.OFF, record.NOT_READ, record.TOO_SHORT}
NATURAL = {FinishReason.END, FinishReason.STOP_TOKEN, FinishReason.LENGTH, FinishReason.CONTEXT}


@dataclass
class Client:
    """What was asked, and what came back."""

    message: Submit
    tokens: list[int] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)
    cancel: Cancel | None = None

    @property
    def end(self) -> Delta | None:
        return next((delta for delta in self.deltas if delta.finish is not None), None)

    @property
    def counted(self) -> list[int]:
        """The output that counts: what `at_output` cut off does not."""
        at = self.cancel.at_output if self.cancel else None
        return self.tokens if at is None else self.tokens[:at]


class RandomSpeculation:
    """Implements `Speculation`: any number of drafts."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.drafted = self.accepted = 0

    def budget_for(self, message: Submit) -> DraftBudget | None:
        return DraftBudget() if message.params.speculation and message.task == "generate" else None

    def most_drafts(self, sequence: Sequence, rows: int) -> int:
        assert sequence.drafting is not None
        sequence.drafting.price = self._random.choice([0.0, 1.0])  # whether its next row waits for this one
        return 0 if sequence.pending else self._random.choice([0, 1, 2, 5, 16])

    def settle(
        self,
        sequences: list[Sequence],
        rows: list[Row],
        results: list[RowResult],
        seconds: float | None,
        ahead: bool = False,
    ) -> None:
        for sequence, row, result in zip(sequences, rows, results, strict=True):
            if sequence.drafting is not None and result.tokens:
                sequence.drafting.reserved = 0
            assert len(result.tokens) - 1 <= result.drafted <= max(0, row.draws - 1)
            self.drafted += result.drafted
            self.accepted += max(0, len(result.tokens) - 1)

    def add_audit(self, tokens: int, mismatches: int) -> None:
        raise AssertionError("the device audits nothing")

    def stats(self) -> dict[str, Any]:
        return {"drafted": self.drafted, "accepted": self.accepted}


class SimulatedAdapter(NamedTuple):
    num_bytes: int = 1


class SimulatedLoader:
    """Implements `adapters.loader.Loader`: a load takes some steps, and some adapters fail."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._loads: list[list[Any]] = []  # steps left, adapter

    @property
    def pending(self) -> int:
        return len(self._loads)

    def start(self, adapter: Adapter) -> bool:
        self._loads.append([self._random.choice([1, 1, 2, 5]), adapter])
        return True

    def release(self, adapter: Adapter, loaded: SimulatedAdapter) -> None:
        pass

    def take_finished(self, wait_s: float = 0.0) -> list[tuple[Adapter, SimulatedAdapter | PenstockError]]:
        for load in self._loads:
            load[0] -= 1
        over = [adapter for left, adapter in self._loads if left <= 0]
        self._loads = [load for load in self._loads if load[0] > 0]
        return [
            (one, AdapterLoadFailed("no such file") if one.name.startswith("bad") else SimulatedAdapter())
            for one in over
        ]


class World:
    def __init__(
        self,
        *,
        windows: tuple[int, ...] = (0,),
        block_size: int = 4,
        spare_blocks: int = 100,
        context: int = 64,
        step_tokens: int = 32,
        max_sequences: int = 8,
        max_waiting: int = 1000,
        lookahead: int = 0,
        policy: str = "fair",
        prefix_caching: bool = True,
        max_waiting_per_tenant: int | None = None,
        options: PolicyOptions = DEFAULT_OPTIONS,
        drafts: Random | None = None,
        adapter_room: int = 1,
        adapter_delays: Random | None = None,
    ) -> None:
        """Each group has the blocks that one sequence needs, and `spare_blocks` more. `drafts` decides how many
        tokens are drafted, and which. There is room for `adapter_room` adapters; `adapter_delays` decides how long
        they take to load."""
        groups = [CacheGroup(window, (index,)) for index, window in enumerate(windows)]
        sizing = CacheManager(groups, [1] * len(groups), block_size, prefix_caching)
        num_blocks = [1 + needed + spare_blocks for needed in sizing.required_blocks(context, step_tokens)]
        self.context = context
        self.now = 0.0
        history = EvictionHistory(lambda: self.now, limit=20)
        self.cache = CacheManager(groups, num_blocks, block_size, prefix_caching, history, secret=bytes(32))
        self.adapters = AdapterCache(SimulatedLoader(adapter_delays or Random(0)), lambda _: 1, adapter_room)
        self.scheduler = Scheduler(
            self.cache,
            step_tokens=step_tokens,
            max_sequences=max_sequences,
            max_waiting=max_waiting,
            max_waiting_per_tenant=max_waiting_per_tenant,
            options=options,
            policy=policy,
            lookahead=lookahead,
            context=context,
            clock=lambda: self.now,
            recorded=True,
            speculation=None if drafts is None else RandomSpeculation(drafts),
            adapters=self.adapters,
        )
        self.plans: deque[StepPlan] = deque()  # not settled
        self.admissions: dict[int, list[Admission]] = {}  # by number
        self.preemptions: Counter[int] = Counter()
        self.preempted: list[Preemption] = []
        self.device = Device(list(windows), num_blocks, block_size, step_tokens, drafts)
        self.clients: dict[str, Client] = {}
        self.planned: bool | None = None  # between the halves of a step: whether there was anything to plan
        self.first: Sequence | None = None  # in line, when a step was last planned
        self.stalled = 0  # plans in a row that it got nothing from

    # --- what can happen

    def submit(
        self,
        prompt: list[int],
        *,
        max_output: int = 8,
        end_tokens: tuple[int, ...] = (),
        seed: int = 0,
        salt: str = "",
        tenant: str = "",
        tier: int = 1,
        weight: float = 1.0,
        priority: int = 0,
        background: bool = False,
        timeout_s: float | None = None,
        embed: Pooling | None = None,
        adapter: str | None = None,
        **params: int | tuple[int, ...] | None,
    ) -> str:
        """`embed`: how to, instead of generating. `adapter`: its name; those that begin with "bad" cannot be
        loaded."""
        number = len(self.clients)
        message = Submit(
            id=f"r{number}",
            tokens=list(prompt),
            params=SamplingParams(**params),  # type: ignore[arg-type]
            seed=seed,
            max_output=0 if embed else min(max_output, self.context - len(prompt)),
            choice=number,
            end_tokens=end_tokens,
            priority=priority,
            background=background,
            salt=salt,
            tenant=tenant,
            tier=tier,
            weight=weight,
            arrival=self.now,
            deadline_s=timeout_s,
            task="embed" if embed else "generate",
            pooling=embed or "mean",
            number=number + 1,
            adapter=None if adapter is None else Adapter(adapter, "00", f"/{adapter}", 1),
        )
        self.device.requests[number] = message
        self.scheduler.submit(message)
        self.clients[message.id] = Client(message)
        return message.id

    def half_step(self) -> None:
        """The next half of what the engine's loop does: plan and launch, or settle what is due."""
        if self.planned is None:
            self._plan()
        else:
            self._settle()
        self.scheduler.check_integrity()

    def step(self) -> bool:
        """A whole step, after the rest of one begun. Gives whether anything could be done."""
        if self.planned is not None:
            self.half_step()
        self.half_step()
        busy = self.scheduler.in_flight > 0 or self.adapters.loading > 0
        self.half_step()
        return busy

    def _plan(self) -> None:
        for adapter, error in self.adapters.take_finished():
            self.scheduler.finish_load(adapter, error)
        queues = self.scheduler._queues
        queues.reorder(self.now)
        queues.load_adapters()
        first, preemptions = next(iter(queues.running), None), queues.preemptions
        in_line = queues.ready.first if queues.ready else None
        yielded = self.scheduler._planner._yielded
        plan = self.scheduler.plan()
        if plan is not None:
            self._check_adapters(plan)
            self.device.launch(plan)
            self.plans.append(plan)
        self.planned = plan is not None
        self._check_deadlines()
        if first is not None:
            self._check_first(first, plan, in_line)
        if self.scheduler._planner._yielded > yielded:
            assert in_line is not None, "a sequence was preempted for nobody"
            assert not in_line.background, "a sequence was preempted for a background one"
            preemptions += 1
        if plan is not None and queues.preemptions > preemptions:
            assert not plan.admits, "what was taken from one is given to the next"
        self._check_background(plan)

    def _settle(self) -> None:
        due = self.scheduler.in_flight > (self.scheduler.lookahead if self.planned else 0)
        self.planned = None
        self._receive(self.scheduler.settle(self.device.collect()) if due else self.scheduler.drain())
        self._check_record(self.plans.popleft() if due else None)

    def cancel(self, id: str, finish: FinishReason = FinishReason.CANCELLED, at_output: int | None = None) -> None:
        message = Cancel(id, finish, at_output)
        if id in self.scheduler._queues.sequences:  # else it comes too late
            self.clients[id].cancel = message
        self.scheduler.cancel(message)
        self._receive(self.scheduler.drain())
        self.scheduler.check_integrity()
        if at_output is not None:
            self._check_nothing_surplus_cached()

    def fail(self) -> None:
        self.planned = None
        self.device.break_down()
        self.plans.clear()
        self.scheduler.fail("the device broke down")
        self._receive(self.scheduler.drain())
        self.scheduler.check_integrity()

    def run(self, most_steps: int = 20_000) -> None:
        """Until nothing is open; a deadlock or a livelock fails."""
        for _ in range(most_steps):
            if not self.scheduler.has_work:
                return
            assert self.step() or not self.scheduler.has_work, "work is left, but nothing can be done"
        raise AssertionError(f"not done after {most_steps} steps")

    def _receive(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            client = self.clients[delta.id]
            assert client.end is None, "news of a sequence that has ended"
            assert delta.tokens or delta.finish, "a delta without news"
            client.deltas.append(delta)
            client.tokens += delta.tokens

    # --- what must be true

    def _check_record(self, plan: StepPlan | None) -> None:
        """What the step just settled has left is what happened."""
        packed = self.scheduler.take_record()
        if plan is None:
            assert packed is None
            return
        assert packed is not None
        found = record.unpack(packed)
        assert found.number == plan.number
        assert [record.tokens_of(word) - record.drafts_of(word)[0] for word in found.words] == [
            row.count for row in plan.rows
        ]
        blocks = [(u.held, u.shared, u.resting, u.cached, u.free) for u in self.cache.usage()]
        assert found.blocks == blocks
        for number, word, row in zip(found.numbers, found.words, plan.rows, strict=True):
            prompt = self.clients[f"r{number - 1}"].message.tokens
            assert bool(word & record.DECODE) == (row.count == 1 and row.start >= len(prompt))
        for entry in found.admissions:
            self.admissions.setdefault(entry.number, []).append(entry)
        self.preemptions.update(entry.number for entry in found.preemptions)
        self.preempted += found.preemptions

    def _check_adapters(self, plan: StepPlan) -> None:
        """Whatever runs finds its adapter in memory."""
        for sequence in self.scheduler._queues.running:
            if sequence.message.adapter is not None:
                self.adapters.get(sequence.message.adapter)
        admitted = {admit.slot: admit.adapter for admit in plan.admits}
        for sequence in self.scheduler._queues.running:
            assert admitted.get(sequence.slot, sequence.message.adapter) == sequence.message.adapter

    def _check_background(self, plan: StepPlan | None) -> None:
        """A step with foreground rows has no more tokens of background rows than of those, or the least."""
        by_slot = {sequence.slot: sequence for sequence in self.scheduler._queues.running}
        tokens = {False: 0, True: 0}
        for row in plan.rows if plan is not None else ():
            if row.slot in by_slot:
                tokens[by_slot[row.slot].background] += row.count
        least = -(-self.device.step_tokens // 128)
        assert not tokens[False] or tokens[True] <= max(least, tokens[False])

    def _check_first(self, first: Sequence, plan: StepPlan | None, in_line: Sequence | None) -> None:
        """The first in policy order is never preempted, and never waits long for blocks, unless one of a better level
        is `in_line`."""
        if in_line is not None and (in_line.background, in_line.share.tier) < (first.background, first.share.tier):
            return
        assert first.state is not State.WAITING, "the first in line was preempted"
        if first.state is State.FINISHED or first is not self.first:
            self.first, self.stalled = first, 0
        served = plan is not None and any(row.slot == first.slot for row in plan.rows)
        scarce = self.device.step_tokens < self.scheduler._queues.slots.count
        scarce |= in_line is not None and in_line.share.key < first.share.key  # another tenant's turn
        self.stalled = 0 if served or scarce or not first.uncomputed else self.stalled + 1
        assert self.stalled <= 2, "the first in line starves"

    def _check_deadlines(self) -> None:
        for sequence in self.scheduler._queues.sequences.values():
            deadline = sequence.deadline
            assert deadline is None or deadline > self.now, f"{sequence.id} is overdue"

    def reference(self, message: Submit) -> tuple[list[int], FinishReason]:
        """The output of this request if it were alone, its tokens computed one after the other."""
        if message.task == "embed":
            return [], FinishReason.END
        history = list(message.tokens)
        while True:
            token = draw(marks_of(history, message)[-1], message.seed)
            history.append(token)
            output = history[len(message.tokens) :]
            if token in message.end_tokens:
                return output, FinishReason.END
            if token in message.params.stop_tokens:
                return output, FinishReason.STOP_TOKEN
            if len(output) == message.max_output:
                full = len(history) == self.context
                return output, FinishReason.CONTEXT if full else FinishReason.LENGTH

    def check_over(self) -> None:
        """After `run`: everybody was answered rightly, and nothing is left behind."""
        for client in self.clients.values():
            self._check_client(client)
        for usage in self.cache.usage():
            assert usage.held == usage.resting == 0, f"blocks leaked: {usage}"
        assert len(self.scheduler._queues.slots) == len(self.scheduler._queues.slots.unused())
        self.adapters.check_integrity({})
        self._check_nothing_surplus_cached()
        assert self.scheduler.stats()["output_tokens"] == sum(len(c.counted) for c in self.clients.values())

    def _check_client(self, client: Client) -> None:
        message, end = client.message, client.end
        assert end is not None, f"{message.id} was never ended"
        assert end.timings is not None
        assert 0 <= end.cached_tokens < len(message.tokens)
        assert (end.finish is FinishReason.ERROR) == (end.error is not None)
        tokens, finish = self.reference(message)
        broken = message.adapter is not None and message.adapter.name.startswith("bad")
        assert not broken or (not client.tokens and end.finish not in NATURAL)
        if end.finish in NATURAL and client.cancel is None:
            assert (client.tokens, end.finish) == (tokens, finish)
        else:
            assert client.tokens == tokens[: len(client.tokens)]
        if client.cancel is not None:
            assert end.finish == client.cancel.finish
        if end.finish is FinishReason.TIMEOUT and client.cancel is None:
            assert message.deadline_s is not None
            assert message.arrival + message.deadline_s <= end.timings.finished
        assert (end.timings.first_token is None) == (not client.tokens)
        self._check_logprobs(client)
        self._check_embedding(client, end)
        if client.message.choice + 1 in self.admissions:  # else a test has planned its steps by hand
            self._check_waits(client, end)

    def _check_waits(self, client: Client, end: Delta) -> None:
        """It was let in once, and once more each time it was sent back and served again."""
        number = client.message.choice + 1
        first, *again = self.admissions[number]
        assert first.cached == end.cached_tokens
        assert end.timings is not None
        assert len(again) <= self.preemptions[number] <= end.timings.preemptions
        for entry in (first, *again):
            assert entry.finding.matched <= len(client.message.tokens)
            assert entry.finding.matched >= (entry.cached if entry is first else 0) or entry.finding.reason in UNREAD

    def _check_embedding(self, client: Client, end: Delta) -> None:
        """Every position of the prompt is in it, once, and none was read from the cache."""
        message = client.message
        assert all(delta.embedding is None for delta in client.deltas if delta is not end)
        if message.task == "embed" and end.finish is FinishReason.END:
            assert end.embedding == embed(marks_of(message.tokens, message), message.pooling)
            assert end.cached_tokens == 0
        else:
            assert end.embedding is None

    def _check_logprobs(self, client: Client) -> None:
        message = client.message
        begin = len(message.tokens)
        if message.params.logprobs is not None:
            logprobs = [entry for delta in client.deltas for entry in delta.logprobs or ()]
            assert logprobs == [logprob_of(token, begin + i) for i, token in enumerate(client.tokens)]
        sent = [delta.prompt_logprobs for delta in client.deltas if delta.prompt_logprobs is not None]
        if message.params.prompt_logprobs is not None and client.tokens:
            assert sent == [[logprob_of(token, i) for i, token in enumerate(message.tokens)][1:]]
            assert client.deltas[0].prompt_logprobs is not None, "they go out with the first output"
            assert client.deltas[-1].cached_tokens == 0
        else:
            assert not sent

    def _check_nothing_surplus_cached(self) -> None:
        """Every key in the cache stands for text that some client sent or was given."""
        legitimate = set()
        for client in self.clients.values():
            tokens = client.message.tokens + client.counted
            message = client.message
            chain = self.cache.chain(message.tenant, message.salt, message.adapter)
            chain.grow(tokens, len(tokens) // self.cache.block_size)
            legitimate |= {link.key for link in chain.links}
        for pool in self.cache._pools:
            assert set(pool._index._blocks) <= legitimate, "surplus tokens stayed in the cache"
