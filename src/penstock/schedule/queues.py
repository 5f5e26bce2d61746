"""The queues of the scheduler: where every open sequence is, and the moves between them, such as admit and preempt.

    WAITING   ready       may be admitted, in policy order
              parked      until a running sequence has computed the prefix it shares (see `prefix_claims`)
              held        until its constraint has been compiled
              in line     until its adapter is in memory (see `adapter_line`)
              recovering  was preempted with rows in flight, one of which may sample a token: until they are settled
    RUNNING   running     holds a slot and blocks, in policy order

Every move takes slot, blocks, claims and the tenant's share along, so that no caller can leave one of them behind.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from penstock.cache import CacheManager, PrefixHit
from penstock.cache.explain import RunningPrefixes
from penstock.errors import PenstockError
from penstock.flow import record
from penstock.schedule.adapter_line import AdapterLine
from penstock.schedule.policy_order import PolicyOrder
from penstock.schedule.prefix_claims import PrefixClaims
from penstock.schedule.sequence import Sequence, State
from penstock.schedule.slot_allocator import SlotAllocator
from penstock.schedule.step_recorder import StepRecorder
from penstock.schedule.tenant_shares import TenantShares


@dataclass(slots=True)
class TenantLoad:
    """Open sequences of a tenant, in all tiers."""

    waiting: int = 0
    running: int = 0


class SequenceQueues:
    def __init__(
        self,
        cache: CacheManager,
        max_sequences: int,
        shares: TenantShares,
        ageing_s: float,
        recorder: StepRecorder | None = None,
        adapters: AdapterLine | None = None,
    ) -> None:
        """`ageing_s`: a sequence that has waited so long goes up a tier. `adapters`: None: no sequence has one."""
        self.cache = cache
        self.shares = shares
        self.recorder = recorder
        self.adapters = adapters
        self.tenants: dict[str, TenantLoad] = {}  # with open sequences
        self.sequences: dict[str, Sequence] = {}  # all that are open, by id
        self.ready = PolicyOrder()
        self.running = PolicyOrder()
        self.slots = SlotAllocator(max_sequences)
        self.claims = PrefixClaims()
        self._ageing_s = ageing_s
        self._newest_step = 0
        self.num_held = 0
        self.preemptions = 0

    @property
    def num_waiting(self) -> int:
        return len(self.sequences) - len(self.running)

    # --- moves

    def enqueue(self, sequence: Sequence, held: bool) -> None:
        """-> ready or held"""
        self.sequences[sequence.id] = sequence
        self.tenants.setdefault(sequence.message.tenant, TenantLoad()).waiting += 1
        sequence.held = held
        self.num_held += held
        ahead = self.ready.add(sequence) if not held else 0
        if self.recorder is not None:
            self.recorder.enqueue(sequence, ahead)
            if held:
                self.recorder.set_aside(sequence, record.CONSTRAINT)

    def release(self, sequence: Sequence) -> None:
        """held -> ready"""
        sequence.held = False
        self.num_held -= 1
        ahead = self.ready.add(sequence)
        if self.recorder is not None:
            self.recorder.requeue(sequence, ahead)

    def lookup_prefix(self, sequence: Sequence) -> PrefixHit:
        """The cached prefix it could start from now."""
        return (
            self.cache.no_hit() if sequence.skips_cache else self.cache.lookup_prefix(sequence.chain, sequence.tokens)
        )

    def park(self, sequence: Sequence, hit: PrefixHit) -> bool:
        """ready -> parked, if what follows its hit is being computed by a running sequence."""
        if sequence.skips_cache:
            return False
        # Blocks that a hit can have: never the one with the last token.
        size = self.cache.block_size
        missing = sequence.chain.links[hit.tokens // size : (len(sequence.tokens) - 1) // size]
        key = self.claims.last_claimed(missing, sequence)
        if key is None:
            return False
        self.ready.remove(sequence)
        self.claims.park(sequence, key)
        if self.recorder is not None:
            self.recorder.set_aside(sequence, record.PREFIX)
        return True

    def wait_for_adapter(self, sequence: Sequence) -> bool:
        """ready -> in line, unless its adapter is in memory."""
        if self.adapters is None or not self.adapters.must_wait(sequence):
            return False
        self.ready.remove(sequence)
        self.adapters.join(sequence)
        if self.recorder is not None:
            self.recorder.set_aside(sequence, record.ADAPTER)
        return True

    def load_adapters(self) -> None:
        """in line -> ready, those whose adapters are in memory; others are loaded. So the first that is ready can run,
        and whatever makes room for it does so for good reason."""
        if self.adapters is None:
            return
        if len(self.adapters):
            self._wake(self.adapters.advance(len(self.slots.unused())))
        while self.ready and self.wait_for_adapter(self.ready.first):
            pass

    def admit(self, sequence: Sequence, hit: PrefixHit, ahead: int, reserve: int) -> bool:
        """ready -> running, if there are blocks for all its tokens, one more for each running sequence, and `reserve`
        others."""
        table = self.cache.allocate(hit, len(sequence.tokens), hit.tokens + ahead, len(self.running) + reserve)
        if table is None:
            return False
        self.ready.remove(sequence)
        if self.recorder is not None:
            self.recorder.admit(sequence, hit, self)
        self.running.add(sequence)
        sequence.state = State.RUNNING
        sequence.slot = self.slots.allocate()
        sequence.table = table
        sequence.computed = sequence.settled = hit.tokens
        self.claims.claim(sequence, hit.tokens // self.cache.block_size)
        if self.adapters is not None:
            self.adapters.admit(sequence)
        self._count_move(sequence, 1)
        if sequence.lost > hit.tokens:  # computed and charged for once more
            sequence.share.charge(hit.tokens - sequence.lost)
        return True

    def preempt(self, sequence: Sequence, why: int) -> None:
        """running -> ready, or recovering if it has rows in flight. `why`: an index in `record.WAITS`."""
        sequence.lost = sequence.computed
        sequence.yields += why == record.SHARE
        self._stop_running(sequence)
        self._count_move(sequence, -1)
        sequence.state = State.WAITING
        sequence.preemptions += 1
        self.preemptions += 1
        if self.recorder is not None:
            self.recorder.preempt(sequence, why)
        if not sequence.in_flight:
            self.ready.add(sequence)

    def recover(self, sequence: Sequence) -> None:
        """recovering -> ready: the last row it had in flight is settled."""
        self.ready.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """From any queue: it has ended."""
        load = self.tenants[sequence.message.tenant]
        if sequence.state is State.RUNNING:
            load.running -= 1
            if self.cache.history is not None:
                self.cache.history.end_sequence(sequence.chain, sequence.tokens, sequence.settled)
            self._stop_running(sequence)
        else:
            load.waiting -= 1
            self._stop_waiting(sequence)
        sequence.state = State.FINISHED
        del self.sequences[sequence.id]
        if not load.waiting and not load.running:
            del self.tenants[sequence.message.tenant]
        if sequence.aged_from is not None:
            sequence.aged_from.aged -= 1
        self.shares.leave(sequence.share)

    def _stop_waiting(self, sequence: Sequence) -> None:
        if sequence.parked is not None:
            self.claims.unpark(sequence)
        elif sequence.held:
            self.num_held -= 1
        elif self.adapters is not None and sequence.in_line:
            self.adapters.leave(sequence)
        elif not sequence.in_flight:
            self.ready.remove(sequence)
        if self.adapters is not None:
            self.adapters.unpin(sequence)

    def _stop_running(self, sequence: Sequence) -> None:
        assert sequence.table is not None
        self.running.remove(sequence)
        self.slots.free(sequence.slot, self._newest_step)
        self.cache.release(sequence.table)
        self._wake(self.claims.release(sequence))
        if self.adapters is not None:
            self.adapters.unpin(sequence)
        sequence.slot, sequence.table = -1, None
        sequence.computed = sequence.settled = 0

    def _count_move(self, sequence: Sequence, started: int) -> None:
        load = self.tenants[sequence.message.tenant]
        load.running += started
        load.waiting -= started

    def _wake(self, waiters: list[Sequence]) -> None:
        for waiter in waiters:
            ahead = self.ready.add(waiter)
            if self.recorder is not None:
                self.recorder.requeue(waiter, ahead)

    # --- order

    def reorder(self, now: float) -> None:
        """Before a plan: by the tenants' counters as of now."""
        if self.shares.num_active > 1:
            self._age(now)
            self.ready.reorder()
            self.running.reorder()

    def _age(self, now: float) -> None:
        """Promote the first sequence of each share that has waited long for better tiers. One at a time: a tier with
        much to do is not starved, and does not flood the one above either."""
        best = self.shares.best_tier()
        for share in self.ready.shares:
            if share.background or share.tier <= best or share.aged:
                continue
            sequence = self.ready.of_share(share)[0]
            promotions = sequence.message.tier - share.tier + 1
            if now - sequence.message.arrival >= promotions * self._ageing_s:
                self._promote(sequence)

    def _promote(self, sequence: Sequence) -> None:
        self.ready.remove(sequence)
        if self.recorder is not None:
            self.recorder.leave_share(sequence)
        if sequence.aged_from is None:
            sequence.aged_from = sequence.share
            sequence.share.aged += 1
        sequence.share = self.shares.promote(sequence.share)
        ahead = self.ready.add(sequence)
        if self.recorder is not None:
            self.recorder.join_share(sequence, ahead)

    # --- progress

    def advance(self, sequence: Sequence) -> None:
        """Publish the blocks that its settled tokens fill, and wake the sequences that waited for them."""
        assert sequence.table is not None
        self.cache.advance(sequence.table, sequence.chain, sequence.tokens, sequence.settled)
        self._wake(self.claims.release(sequence, sequence.settled // self.cache.block_size))

    def running_prefixes(self) -> RunningPrefixes:
        """The blocks that running sequences compute now."""
        prefixes = RunningPrefixes()
        for sequence in self.running:
            prefixes.add(sequence.chain, sequence.tokens, sequence.settled)
        return prefixes

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Drop the tokens beyond `length`, which are surplus, from the sequence and from the cache."""
        if length < len(sequence.tokens):
            self.cache.uncache(sequence.table, sequence.chain, length)
            del sequence.tokens[length:]

    def begin_step(self, number: int) -> None:
        """Step `number` is in flight."""
        self._newest_step = number
        self.cache.begin_step(number)

    def retire(self, number: int) -> None:
        """Step `number` and all before it are over."""
        self.cache.retire(number)
        self.slots.retire(number)

    # --- proof

    def check_integrity(self) -> None:
        self.cache.check_integrity()
        self.claims.check_integrity()
        if self.adapters is not None:
            self.adapters.check_integrity(list(self.sequences.values()))
        running, ready = list(self.running), list(self.ready)
        self._check_shares()
        for sequence in self.sequences.values():
            here = running if sequence.state is State.RUNNING else ready
            elsewhere = sequence.parked is not None or sequence.held or sequence.in_line or sequence.in_flight
            expected = sequence.state is State.RUNNING or not elsewhere
            if (sequence in here) != expected or (sequence in running and sequence in ready):
                raise PenstockError(f"sequence {sequence.id} is {sequence.state.name} but not where it should be")
            if (sequence.table is not None) != (sequence.state is State.RUNNING):
                raise PenstockError(f"sequence {sequence.id} is {sequence.state.name} and its blocks are not")
            if not sequence.settled <= sequence.computed <= len(sequence.tokens) + sequence.pending:
                raise PenstockError(f"sequence {sequence.id} computes what does not exist")
            if sequence.claimed and sequence.claimed.start < sequence.settled // self.cache.block_size:
                raise PenstockError(f"sequence {sequence.id} still claims what it has computed")
        if any(self.sequences.get(sequence.id) is not sequence for sequence in (*running, *ready)):
            raise PenstockError("a sequence that has ended is still in a queue")
        taken = [sequence.slot for sequence in running]
        if sorted([*taken, *self.slots.unused()]) != list(range(self.slots.count)):
            raise PenstockError(f"slots {taken} are in use and {self.slots.unused()} are not: some are lost or doubled")

    def _check_shares(self) -> None:
        for share, group in (*self.running.groups, *self.ready.groups):
            if group != sorted(group, key=lambda sequence: sequence.rank):
                raise PenstockError("sequences are out of policy order")
            if any(sequence.share is not share for sequence in group):
                raise PenstockError("a sequence is in the queue of another tenant")
        sequences = self.sequences.values()
        for share in self.shares.snapshot():
            if share.open != sum(sequence.share is share for sequence in sequences):
                raise PenstockError(f"the share of tenant {share.tenant!r} miscounts its sequences")
            if share.aged != sum(sequence.aged_from is share for sequence in sequences):
                raise PenstockError(f"the share of tenant {share.tenant!r} miscounts its aged sequences")
        running = Counter(one.message.tenant for one in sequences if one.state is State.RUNNING)
        total = Counter(one.message.tenant for one in sequences)
        loads = {tenant: TenantLoad(count - running[tenant], running[tenant]) for tenant, count in total.items()}
        if loads != self.tenants:
            raise PenstockError(f"the sequences of tenants are {loads} but count as {self.tenants}")
