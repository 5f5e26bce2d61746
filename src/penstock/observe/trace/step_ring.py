"""A ring buffer of one replica's steps, kept packed: the last 65,536 of them, and no more than 64 MiB."""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from penstock.flow import record
from penstock.flow.record import StepRecord

MAX_STEPS = 65_536
MAX_BYTES = 64 << 20
OVERHEAD_BYTES = 200  # of an entry in Python's own memory


class PackedStep(NamedTuple):
    record: bytes  # as `flow.record.pack` makes it
    received: float  # when the frontend read it
    numbers: bytes  # array("I") of its sequences: first those with one further token and nothing else
    text_times: bytes  # array("d"): when the tokens of all of the first were text, then of each of the others


class StepRing:
    """Numbers steps in the order they arrive. An engine counts its own from 1; these numbers go on when it restarts."""

    def __init__(self, max_steps: int = MAX_STEPS, max_bytes: int = MAX_BYTES) -> None:
        self._steps: deque[PackedStep] = deque()
        self._max_steps, self._max_bytes = max_steps, max_bytes
        self._lock = threading.Lock()  # threads other than the event loop's read long windows
        self._bytes = 0
        self.last = 0  # number of the newest

    @property
    def first(self) -> int:
        """Number of the oldest step in the ring."""
        return self.last - len(self._steps) + 1

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, packed: bytes, received: float, numbers: bytes, text_times: bytes) -> StepRecord:
        """Append a step; returns it unpacked, with its number in the ring."""
        step = record.unpack(packed)
        with self._lock:
            self._steps.append(PackedStep(packed, received, numbers, text_times))
            self._bytes += len(packed) + len(numbers) + len(text_times) + OVERHEAD_BYTES
            self.last += 1
            while len(self._steps) > self._max_steps or self._bytes > self._max_bytes:
                oldest = self._steps.popleft()
                self._bytes -= len(oldest.record) + len(oldest.numbers) + len(oldest.text_times) + OVERHEAD_BYTES
        return step._replace(number=self.last)

    def add_texts(self, number: int, numbers: array[int], text_times: array[float]) -> None:
        """Of a step that is there, from another frontend: when the tokens of these sequences were text."""
        with self._lock:
            place = number - self.last - 1  # from the end: it is among the newest
            if -place > len(self._steps) or place >= 0:
                return
            step = self._steps[place]
            more = (step.numbers + numbers.tobytes(), step.text_times + text_times.tobytes())
            self._steps[place] = step._replace(numbers=more[0], text_times=more[1])
            self._bytes += len(numbers.tobytes()) + len(text_times.tobytes())

    def find(self, number: int) -> StepRecord | None:
        """The step of this number, if the ring has it."""
        return next(iter(self.between(number, number)), None)

    def between(self, begin: int, end: int) -> Iterator[StepRecord]:
        """Steps begin .. end, as far as the ring still has them."""
        for number, packed in self._slice(begin, end):
            yield record.unpack(packed.record)._replace(number=number)

    def between_with_text_times(self, begin: int, end: int) -> Iterator[tuple[StepRecord, float, dict[int, int]]]:
        """The same, each with when it was received and, by sequence number, the microseconds from then until its tokens
        were text."""
        for number, packed in self._slice(begin, end):
            numbers = array("I", packed.numbers)
            done, *others = array("d", packed.text_times)
            first = len(numbers) - len(others)  # they share the time of one pass
            times = [packed.received + (done - packed.received) * (place + 1) / first for place in range(first)]
            microseconds = [int((t - packed.received) * 1e6 + 0.5) for t in (*times, *others)]
            texts = dict(zip(numbers, microseconds, strict=True))
            yield record.unpack(packed.record)._replace(number=number), packed.received, texts

    def _slice(self, begin: int, end: int) -> list[tuple[int, PackedStep]]:
        with self._lock:
            begin, end = max(begin, self.first), min(end, self.last)
            count = max(0, end - begin + 1)
            # A deque is fast at its ends only: start from the nearer one.
            if self.last - end < begin - self.first:
                steps = list(islice(reversed(self._steps), self.last - end, self.last - end + count))[::-1]
            else:
                steps = list(islice(self._steps, begin - self.first, begin - self.first + count))
        return list(zip(range(begin, begin + count), steps, strict=True))
