"""From the engine's frames to the tickets of waiting clients.

Most of a frame is one further token for each of many sequences (`Frame.tokens`). Where a sequence has a lane, its token
is text on a socket after a few function calls, and no object is made for it. Everything else is a Delta, which takes
the long way through `Ticket.push`, and so does a token that a lane refuses.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence

from penstock.deployment.ticket import OpenSequence, Ticket, TokenLane
from penstock.flow import Cancel, Delta, FinishReason, Frame, Submit
from penstock.flow.identity import UNNAMED, Source
from penstock.observe import events
from penstock.observe.events import Emit
from penstock.stream.active_request import ActiveRequest


class Dispatcher:
    """Knows every sequence that has not ended. `cancel` tells the engine to end one."""

    def __init__(self, cancel: Callable[[Cancel], None], source: Source = UNNAMED, emit: Emit | None = None) -> None:
        self.sequences: dict[str, OpenSequence] = {}  # by id
        self.pending_tokens = 0  # prompt tokens of sequences without output
        self.answered_tokens = 0  # of those that had some, ever
        self._by_number: dict[int, OpenSequence] = {}
        self._cancel = cancel
        self._source = source
        self._emit = emit
        self._lanes: list[TokenLane] = []  # with tokens to write
        self._tickets: list[Ticket] = []  # whose sinks have chunks to take

    def add(self, ticket: Ticket) -> None:
        for sequence in ticket.sequences.values():
            self.add_sequence(sequence)

    def add_sequence(self, sequence: OpenSequence) -> None:
        self.sequences[sequence.id] = sequence
        if sequence.number:
            self._by_number[sequence.number] = sequence
        self.pending_tokens += sequence.pending_tokens

    def count_prompts(self, submits: Sequence[Submit]) -> None:
        """The engine computes these prompts whole, against what was expected of them."""
        for submit in submits:
            sequence = self.sequences.get(submit.id)
            if sequence is not None and sequence.pending_tokens:
                self.pending_tokens += len(submit.tokens) - sequence.pending_tokens
                sequence.pending_tokens = len(submit.tokens)

    def remove(self, sequence: OpenSequence) -> None:
        """It has ended, or another replica has it now."""
        del self.sequences[sequence.id]
        self._by_number.pop(sequence.number, None)
        self.pending_tokens -= sequence.pending_tokens

    def tell_queued(self, active_requests: Sequence[ActiveRequest]) -> None:
        if self._emit is not None:
            sequences = [
                (submit.number, submit.id, prompt, submit.choice, len(submit.tokens))
                for prompt, active in enumerate(active_requests)
                for submit in active.submits
            ]
            request = events.http_request_id(active_requests[0].id)
            adapter = active_requests[0].submits[0].adapter
            named = "" if adapter is None else adapter.name
            self._emit(events.Queued(request, time.monotonic(), sequences, self._source, named))

    def tell_requeued(self, sequence: OpenSequence) -> None:
        if self._emit is not None:
            self._emit(events.Requeued("", time.monotonic(), sequence.id, self._source))

    def dispatch(self, frame: Frame, orphan: Callable[[Delta], bool]) -> None:
        """Deliver all of a frame; `flush` must follow. Deltas that `orphan` takes are not delivered."""
        now = time.monotonic
        start = now()
        numbers = self._push_tokens(frame) if frame.tokens else ()
        end = tokens_done = now() if numbers else start
        times, delivered = [], []
        for delta in frame.deltas:
            if not (delta.code is not None and orphan(delta)) and self.deliver(delta):
                delivered.append(delta)
                times.append(end := now())
        if self._emit is not None:
            of_frame = (delivered, times, self._source, numbers, tokens_done, frame.step)
            self._emit(events.Delivered("", end, start, frame.record, *of_frame))

    def _push_tokens(self, frame: Frame) -> array[int]:
        """Returns the numbers of the sequences that got a token."""
        numbers, tokens = frame.pairs()
        find, lanes, unknown = self._by_number.get, self._lanes, False
        for number, token in zip(numbers, tokens, strict=True):
            if (sequence := find(number)) is None:
                unknown = True
                continue
            lane = sequence.lane
            try:
                taken = lane is not None and lane.push(token)
            except Exception:  # it is raised again on the long way, which tells the client
                taken = False
            if taken and lane is not None:
                lanes.append(lane)
            else:
                self.deliver(Delta(id=sequence.id, tokens=[token]))
        return array("I", filter(self._by_number.__contains__, numbers)) if unknown else numbers

    def deliver(self, delta: Delta) -> bool:
        """Hand a Delta to its ticket; False if the sequence has ended already."""
        sequence = self.sequences.get(delta.id)
        if sequence is None:
            return False
        if sequence.pending_tokens:
            self.pending_tokens -= sequence.pending_tokens
            self.answered_tokens += sequence.pending_tokens
            sequence.pending_tokens = 0
        ticket = sequence.ticket
        if cancel := ticket.push(delta):
            self._cancel(cancel)
        if ticket.sink is not None:
            self._tickets.append(ticket)
        if delta.finish is not None:
            self.remove(sequence)
        return True

    def flush(self) -> None:
        """Write what was delivered. Lanes first: they refuse tokens as soon as their ticket has chunks."""
        if self._lanes:
            lanes, self._lanes = self._lanes, []
            now = time.monotonic()
            for lane in lanes:
                lane.flush(now)
        if self._tickets:
            tickets, self._tickets = self._tickets, []
            for ticket in tickets:
                ticket.flush()


def terminal_delta(name: str, why: str, code: str) -> Delta:
    """The terminal Delta of a sequence that no engine will end any more."""
    return Delta(id=name, finish=FinishReason.ERROR, error=why, code=code)
