"""Sequences as the engine's frames tell of them: admitted, preempted, their tokens, their end."""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable

from penstock.flow.identity import Source
from penstock.flow.record import STEP, Admission, StepRecord, micros
from penstock.observe import events
from penstock.observe.trace.records import LAB, Moment, RequestTrace, SequenceTrace
from penstock.observe.trace.replica import ReplicaTrace, Totals

MAX_SAMPLES = 20_000
MAX_EARLY = 1024  # admissions of sequences that are not known yet


class SequenceTraces:
    """Those of the requests that the journal keeps, found by ids and numbers that are unique per server."""

    def __init__(self, replica: Callable[[Source], ReplicaTrace]) -> None:
        """`replica` gives what is known of one; what its sequences add up to is counted there."""
        self.first_tokens: deque[tuple[float, float]] = deque(maxlen=MAX_SAMPLES)  # when, seconds it took
        self._replica = replica
        self._by_id: dict[str, SequenceTrace] = {}
        self._by_number: dict[int, SequenceTrace] = {}
        self._owners: dict[int, RequestTrace] = {}  # by number
        # By number: admissions that came before their Queued, which with several frontends goes another way.
        self._early: OrderedDict[int, tuple[Admission, StepRecord]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_number)

    def add(self, sequence: SequenceTrace, request: RequestTrace) -> None:
        """It is queued at the replica that the request names."""
        self._by_id[sequence.id] = self._by_number[sequence.number] = sequence
        self._owners[sequence.number] = request
        if (early := self._early.pop(sequence.number, None)) is not None:
            self._admit(self._replica(request.source).totals, sequence, *early)

    def forget(self, sequence: SequenceTrace) -> None:
        self._by_id.pop(sequence.id, None)
        self._by_number.pop(sequence.number, None)
        self._owners.pop(sequence.number, None)

    def get(self, number: int) -> SequenceTrace | None:
        return self._by_number.get(number)

    def find(self, number: int) -> tuple[RequestTrace, SequenceTrace] | None:
        owner = self._owners.get(number)
        return None if owner is None else (owner, self._by_number[number])

    def owned_by(self, tenant: str, number: int) -> bool:
        """Whether a sequence is this tenant's. One that is forgotten counts as the default tenant's."""
        owner = self._owners.get(number)
        return tenant == ("" if owner is None else owner.tenant)

    # --- events

    def requeue(self, event: events.Requeued) -> None:
        if (sequence := self._by_id.get(event.sequence)) is not None:
            sequence.received = sequence.admitted = sequence.first_token = sequence.first_text = None
            sequence.output_tokens = 0
            sequence.waiting = True
            self._owners[sequence.number].source = event.source

    def deliver(self, event: events.Delivered) -> None:
        """What a frame of the engine has brought."""
        by_id, start, settled = self._by_id, event.start, event.start
        replica = self._replica(event.source)
        news = [
            (sequence, delta, t)
            for delta, t in zip(event.deltas, event.times, strict=True)
            if (sequence := by_id.get(delta.id)) is not None
        ]
        replica.totals.text_s += max(event.t - start, 0.0)
        if event.record is not None:
            numbers = array("I", event.numbers)
            numbers.extend(sequence.number for sequence, _, _ in news)
            times = array("d", [event.tokens_done, *(t for _, _, t in news)])
            replica.note_record(event.step)
            step = replica.steps.add(event.record, start, numbers.tobytes(), times.tobytes())
            settled = step.start + step.settled_us * 1e-6
            self._stepped(replica, step, settled)
        elif event.step and (found := replica.steps.find(replica.ring_number(event.step))) is not None:
            settled = found.start + found.settled_us * 1e-6
            numbers = array("I", [*event.numbers, *(sequence.number for sequence, _, _ in news)])
            times = array("d", [*[event.tokens_done] * len(event.numbers), *(t for _, _, t in news)])
            replica.steps.add_texts(found.number, numbers, times)
        moment = Moment(settled, start, replica.steps.last)
        gaps = self._further_tokens(event, moment) if event.numbers else {}
        tokens = sum(gaps.values())
        for sequence, delta, t in news:
            if sequence.finish is not None:
                continue
            if count := len(delta.tokens):
                if sequence.first_token is None:
                    self._first_token(sequence, settled, t)
                else:
                    gap = (settled - sequence.latest.settled) / count
                    gaps[gap] = gaps.get(gap, 0) + count
                sequence.output_tokens += count
                tokens += count
                sequence.latest = moment
            else:
                sequence.tokenless = moment
            sequence.text_done = t
            if delta.finish is not None:
                sequence.finish, sequence.finished = delta.finish, settled
                sequence.waiting = False
                if delta.timings is not None:
                    sequence.drafted, sequence.accepted = delta.timings.drafted, delta.timings.accepted
        replica.totals.output_tokens += tokens
        replica.count_gaps(gaps)

    def _further_tokens(self, event: events.Delivered, moment: Moment) -> dict[float, int]:
        """One more token for each of `event.numbers`; returns how often each gap between tokens occurred. Most
        sequences got their last token in the same frame, so that there is one gap to work out for all of them."""
        gaps: dict[float, int] = {}
        find, done, before, gap, count = self._by_number.get, event.tokens_done, moment, 0.0, 0
        for number in event.numbers:
            if (sequence := find(number)) is None or sequence.finish is not None:
                continue
            if sequence.latest is not before:
                if count:
                    gaps[gap] = gaps.get(gap, 0) + count
                before, count = sequence.latest, 0
                gap = moment.settled - before.settled
            count += 1
            sequence.latest, sequence.text_done = moment, done
            sequence.output_tokens += 1
        if count:
            gaps[gap] = gaps.get(gap, 0) + count
        return gaps

    def _first_token(self, sequence: SequenceTrace, settled: float, t: float) -> None:
        request = self._owners[sequence.number]
        if not request.answered and request.kind != LAB and request.batch is None:
            self.first_tokens.append((t, t - request.accepted))
        request.answered = True
        sequence.first_token, sequence.first_text = settled, t

    def _stepped(self, replica: ReplicaTrace, step: StepRecord, settled: float) -> None:
        replica.count_step(step, settled)
        for entry in step.admissions:
            if (sequence := self._by_number.get(entry.number)) is not None:
                self._admit(replica.totals, sequence, entry, step)
            else:
                self._early[entry.number] = entry, step
                if len(self._early) > MAX_EARLY:
                    self._early.popitem(last=False)
        for number, why in step.preemptions:
            if (sequence := self._by_number.get(number)) is not None:
                sequence.preemptions.append((step.start, step.number, why))
                sequence.waiting = True

    def _admit(self, totals: Totals, sequence: SequenceTrace, entry: Admission, step: StepRecord) -> None:
        sequence.waiting = False
        if sequence.admitted is not None or sequence.finish is not None:  # it was preempted in between, or has failed
            return
        totals.prompt_tokens += sequence.prompt_tokens
        totals.hit_tokens += entry.cached
        sequence.received, sequence.admitted = entry.since, step.start
        sequence.first_step = step.number
        sequence.latest = Moment(step.start, step.start, step.number)
        sequence.cached, sequence.finding = entry.cached, entry.finding
        # The engine reads its messages between two steps: until then it was in a step.
        waits_us = list(entry.waits_us)
        waits_us[STEP] += micros(entry.since - sequence.queued)
        sequence.waits_us = tuple(waits_us)
        sequence.ahead, sequence.overtaken = entry.ahead, entry.overtaken
