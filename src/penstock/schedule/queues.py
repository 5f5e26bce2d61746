"""Where every open sequence is, and the moves between those places.

    WAITING   ready       may be admitted, in policy order
              parked      until a running sequence has computed the prefix it shares (see `claims`)
              held        until its constraint has been compiled
              recovering  was preempted with rows in flight, one of which may bring a token: until they are settled
    RUNNING   running     holds a slot and blocks, in policy order

Every move takes slot, blocks and claims along, so that nothing outside this module can leave one of them behind.
"""

from __future__ import annotations

from penstock.cache import CacheManager, Hit
from penstock.cache.explain import Kin
from penstock.errors import PenstockError
from penstock.flow import record
from penstock.schedule.policy_order import Ordered
from penstock.schedule.prefix_claims import Claims
from penstock.schedule.sequence import Sequence, State
from penstock.schedule.slot_allocator import Slots
from penstock.schedule.step_recorder import Recorder


class Roster:
    def __init__(self, cache: CacheManager, max_sequences: int, recorder: Recorder | None = None) -> None:
        self.cache = cache
        self.recorder = recorder
        self.sequences: dict[str, Sequence] = {}  # all that are open, by id
        self.ready = Ordered()
        self.running = Ordered()
        self.slots = Slots(max_sequences)
        self.claims = Claims()
        self._newest_step = 0
        self.num_held = 0
        self.preemptions = 0

    @property
    def num_waiting(self) -> int:
        return len(self.sequences) - len(self.running)

    # --- moves

    def enter(self, sequence: Sequence, held: bool) -> None:
        """-> ready or held"""
        self.sequences[sequence.id] = sequence
        sequence.held = held
        self.num_held += held
        ahead = self.ready.add(sequence) if not held else 0
        if self.recorder is not None:
            self.recorder.lined_up(sequence, ahead)
            if held:
                self.recorder.set_aside(sequence, record.CONSTRAINT)

    def release(self, sequence: Sequence) -> None:
        """held -> ready"""
        sequence.held = False
        self.num_held -= 1
        ahead = self.ready.add(sequence)
        if self.recorder is not None:
            self.recorder.back_in_line(sequence, ahead)

    def match(self, sequence: Sequence) -> Hit:
        """What it could start from now."""
        return self.cache.miss() if sequence.reads_nothing else self.cache.match(sequence.chain, sequence.tokens)

    def park(self, sequence: Sequence, hit: Hit) -> bool:
        """ready -> parked, if what follows its hit is being computed by a running sequence."""
        if sequence.reads_nothing:
            return False
        # Blocks a hit could be made of: never the one that holds the last token.
        size = self.cache.block_size
        wanted = sequence.chain.links[hit.tokens // size : (len(sequence.tokens) - 1) // size]
        key = self.claims.last_claimed(wanted)
        if key is None:
            return False
        self.ready.remove(sequence)
        self.claims.park(sequence, key)
        if self.recorder is not None:
            self.recorder.set_aside(sequence, record.PREFIX)
        return True

    def admit(self, sequence: Sequence, hit: Hit, ahead: int) -> bool:
        """ready -> running, if blocks last: for all it knows, and one more for each sequence that runs already."""
        table = self.cache.claim(hit, len(sequence.tokens), hit.tokens + ahead, reserve=len(self.running))
        if table is None:
            return False
        self.ready.remove(sequence)
        if self.recorder is not None:
            self.recorder.admitted(sequence, hit, self)
        self.running.add(sequence)
        sequence.state = State.RUNNING
        sequence.slot = self.slots.take()
        sequence.table = table
        sequence.computed = sequence.settled = hit.tokens
        self.claims.stake(sequence, hit.tokens // self.cache.block_size)
        return True

    def preempt(self, sequence: Sequence) -> None:
        """running -> ready, or recovering if it has rows in flight."""
        self._stop_running(sequence)
        sequence.state = State.WAITING
        sequence.preemptions += 1
        self.preemptions += 1
        if self.recorder is not None:
            self.recorder.preempted(sequence)
        if not sequence.in_flight:
            self.ready.add(sequence)

    def recover(self, sequence: Sequence) -> None:
        """recovering -> ready: the last row it had in flight is settled."""
        self.ready.add(sequence)

    def leave(self, sequence: Sequence) -> None:
        """From wherever it is."""
        if sequence.state is State.RUNNING:
            if self.cache.recall is not None:
                self.cache.recall.ended(sequence.chain, sequence.tokens, sequence.settled)
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
        self.slots.give(sequence.slot, self._newest_step)
        self.cache.release(sequence.table)
        self._wake(self.claims.yield_up(sequence))
        sequence.slot, sequence.table = -1, None
        sequence.computed = sequence.settled = 0

    def _wake(self, waiters: list[Sequence]) -> None:
        for waiter in waiters:
            ahead = self.ready.add(waiter)
            if self.recorder is not None:
                self.recorder.back_in_line(waiter, ahead)

    # --- progress

    def advance(self, sequence: Sequence) -> None:
        """Publish the blocks that its settled tokens fill; whoever waited for them can have them."""
        assert sequence.table is not None
        self.cache.advance(sequence.table, sequence.chain, sequence.tokens, sequence.settled)
        self._wake(self.claims.yield_up(sequence, sequence.settled // self.cache.block_size))

    def kin(self) -> Kin:
        """What those that run are computing now."""
        kin = Kin()
        for sequence in self.running:
            kin.add(sequence.chain, sequence.tokens, sequence.settled)
        return kin

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Tokens beyond `length` are surplus: as if they had never been."""
        if length < len(sequence.tokens):
            self.cache.forget(sequence.table, sequence.chain, length)
            del sequence.tokens[length:]

    def planned(self, number: int) -> None:
        """Step `number` is in flight."""
        self._newest_step = number
        self.cache.planned(number)

    def retire(self, number: int) -> None:
        """Step `number` and all before it are over."""
        self.cache.retire(number)
        self.slots.retire(number)

    # --- proof

    def check_integrity(self) -> None:
        self.cache.check_integrity()
        self.claims.check_integrity()
        running, ready = list(self.running), list(self.ready)
        for line in (running, ready):
            if line != sorted(line, key=lambda sequence: sequence.rank):
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
        if sorted([*taken, *self.slots.idle()]) != list(range(self.slots.count)):
            raise PenstockError(f"slots {taken} are taken and {self.slots.idle()} are not: some are lost or doubled")
