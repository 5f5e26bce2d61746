"""The queues of the scheduler: where every open sequence is, and the moves between them, such as admit and preempt.

    WAITING   ready       may be admitted, in policy order
              parked      until a running sequence has computed the prefix it shares (see `prefix_claims`)
              held        until its constraint has been compiled
              recovering  was preempted with rows in flight, one of which may sample a token: until they are settled
    RUNNING   running     holds a slot and blocks, in policy order

Every move takes slot, blocks and claims along, so that no caller can leave one of them behind.
"""

from __future__ import annotations

from penstock.cache import CacheManager, PrefixHit
from penstock.cache.explain import RunningPrefixes
from penstock.errors import PenstockError
from penstock.flow import record
from penstock.schedule.policy_order import PolicyOrder
from penstock.schedule.prefix_claims import PrefixClaims
from penstock.schedule.sequence import Sequence, State
from penstock.schedule.slot_allocator import SlotAllocator
from penstock.schedule.step_recorder import StepRecorder


class SequenceQueues:
    def __init__(self, cache: CacheManager, max_sequences: int, recorder: StepRecorder | None = None) -> None:
        self.cache = cache
        self.recorder = recorder
        self.sequences: dict[str, Sequence] = {}  # all that are open, by id
        self.ready = PolicyOrder()
        self.running = PolicyOrder()
        self.slots = SlotAllocator(max_sequences)
        self.claims = PrefixClaims()
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
        key = self.claims.last_claimed(missing, background=sequence.background)
        if key is None:
            return False
        self.ready.remove(sequence)
        self.claims.park(sequence, key)
        if self.recorder is not None:
            self.recorder.set_aside(sequence, record.PREFIX)
        return True

    def admit(self, sequence: Sequence, hit: PrefixHit, ahead: int) -> bool:
        """ready -> running, if there are blocks for all its tokens and one more for each running sequence."""
        table = self.cache.allocate(hit, len(sequence.tokens), hit.tokens + ahead, reserve=len(self.running))
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
        return True

    def preempt(self, sequence: Sequence) -> None:
        """running -> ready, or recovering if it has rows in flight."""
        self._stop_running(sequence)
        sequence.state = State.WAITING
        sequence.preemptions += 1
        self.preemptions += 1
        if self.recorder is not None:
            self.recorder.preempt(sequence)
        if not sequence.in_flight:
            self.ready.add(sequence)

    def recover(self, sequence: Sequence) -> None:
        """recovering -> ready: the last row it had in flight is settled."""
        self.ready.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """From any queue: it has ended."""
        if sequence.state is State.RUNNING:
            if self.cache.history is not None:
                self.cache.history.end_sequence(sequence.chain, sequence.tokens, sequence.settled)
            self._stop_running(sequence)
        elif sequence.parked is not None:
            self.claims.unpark(sequence)
        elif sequence.held:
            self.num_held -= 1
        elif not sequence.in_flight:
            self.ready.remove(sequence)
        sequence.state = State.FINISHED
        del self.sequences[sequence.id]

    def _stop_running(self, sequence: Sequence) -> None:
        assert sequence.table is not None
        self.running.remove(sequence)
        self.slots.free(sequence.slot, self._newest_step)
        self.cache.release(sequence.table)
        self._wake(self.claims.release(sequence))
        sequence.slot, sequence.table = -1, None
        sequence.computed = sequence.settled = 0

    def _wake(self, waiters: list[Sequence]) -> None:
        for waiter in waiters:
            ahead = self.ready.add(waiter)
            if self.recorder is not None:
                self.recorder.requeue(waiter, ahead)

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
        running, ready = list(self.running), list(self.ready)
        for queue in (running, ready):
            if queue != sorted(queue, key=lambda sequence: sequence.rank):
                raise PenstockError("sequences are out of policy order")
        for sequence in self.sequences.values():
            here = running if sequence.state is State.RUNNING else ready
            elsewhere = sequence.parked is not None or sequence.held or sequence.in_flight
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
