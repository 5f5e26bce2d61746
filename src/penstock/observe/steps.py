"""The engine's steps, kept packed: the last 65,536 of them, and no more than 64 MiB."""

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


class Kept(NamedTuple):
    packed: bytes
    received: float  # when the frontend had it
    text_us: bytes  # array("I") of sequence number, microseconds since then: when its tokens were text


class Steps:
    """Numbered as they come, over the engine's restarts: an engine counts its own from 1."""

    def __init__(self, max_steps: int = MAX_STEPS, max_bytes: int = MAX_BYTES) -> None:
        self._kept: deque[Kept] = deque()
        self._max_steps, self._max_bytes = max_steps, max_bytes
        self._lock = threading.Lock()  # long windows are put together in other threads
        self._bytes = 0
        self.last = 0  # number of the newest

    @property
    def first(self) -> int:
        """Number of the oldest that is kept."""
        return self.last - len(self._kept) + 1

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, packed: bytes, received: float, text_us: bytes) -> StepRecord:
        """Keep it; gives it unpacked, numbered as the server counts."""
        found = record.unpack(packed)
        with self._lock:
            self._kept.append(Kept(packed, received, text_us))
            self._bytes += len(packed) + len(text_us) + OVERHEAD_BYTES
            self.last += 1
            while len(self._kept) > self._max_steps or self._bytes > self._max_bytes:
                oldest = self._kept.popleft()
                self._bytes -= len(oldest.packed) + len(oldest.text_us) + OVERHEAD_BYTES
        return found._replace(number=self.last)

    def between(self, begin: int, end: int) -> Iterator[StepRecord]:
        """Those numbered begin .. end that are kept."""
        for number, kept in self._span(begin, end):
            yield record.unpack(kept.packed)._replace(number=number)

    def detailed(self, begin: int, end: int) -> Iterator[tuple[StepRecord, float, dict[int, int]]]:
        """The same, with when each was received and what `Kept.text_us` says."""
        for number, kept in self._span(begin, end):
            times = array("I", kept.text_us)
            texts = dict(zip(times[::2], times[1::2], strict=True))
            yield record.unpack(kept.packed)._replace(number=number), kept.received, texts

    def _span(self, begin: int, end: int) -> list[tuple[int, Kept]]:
        with self._lock:
            begin, end = max(begin, self.first), min(end, self.last)
            count = max(0, end - begin + 1)
            # A deque is quick at its ends only.
            if self.last - end < begin - self.first:
                found = list(islice(reversed(self._kept), self.last - end, self.last - end + count))[::-1]
            else:
                found = list(islice(self._kept, begin - self.first, begin - self.first + count))
        return list(zip(range(begin, begin + count), found, strict=True))
