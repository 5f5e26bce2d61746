"""A sliding window: the sum of amounts within the last 60 seconds, at any instant."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

WINDOW_US = 60_000_000
_COMPACT = 1024  # entries that have left, before their memory is given back


class SlidingWindow:
    """Amounts with their times in microseconds. At `now` those of the half-open interval (now - 60 s, now] count."""

    __slots__ = ("_base", "_first", "_sums", "_times")

    def __init__(self) -> None:
        self._times = array("q")
        self._sums = array("q")  # [i]: of all amounts up to and with i
        self._first = 0  # index of the first entry that counts
        self._base = 0  # sum of the entries before it

    def add(self, amount: int, at: int) -> None:
        """`at` must not be before that of the last entry."""
        times, sums = self._times, self._sums
        if times and times[self._first] <= at - WINDOW_US:
            self.total(at)  # drops old entries: a limit that is never checked would keep them all
        times.append(at)
        sums.append((sums[-1] if sums else 0) + amount)

    def remove(self, amount: int, at: int) -> None:
        """What was added at that time, unless it has left."""
        times, sums = self._times, self._sums
        first, end = bisect_left(times, at, self._first), bisect_right(times, at, self._first)
        if first < end:
            for entry in range(end - 1, len(sums)):
                sums[entry] -= amount
            for entry in range(first, end - 1):  # of the same time: sums never decrease
                sums[entry] = min(sums[entry], sums[end - 1])

    def total(self, now: int) -> int:
        """The sum of what counts at `now`, which must not go back."""
        times, sums = self._times, self._sums
        if not times:
            return 0
        if times[-1] <= now - WINDOW_US:
            del times[:], sums[:]
            self._first = self._base = 0
            return 0
        if times[self._first] <= now - WINDOW_US:
            self._first = bisect_right(times, now - WINDOW_US, self._first)
            self._base = sums[self._first - 1]
            if self._first > _COMPACT and self._first * 2 > len(times):
                del times[: self._first], sums[: self._first]
                self._first = 0
        return sums[-1] - self._base

    def wait_us(self, amount: int, now: int) -> int:
        """How long until `amount` has left, after `total(now)`; at most that total."""
        leaves = bisect_left(self._sums, self._base + amount, self._first)
        return self._times[leaves] + WINDOW_US - now

    def reset_us(self, now: int) -> int:
        """How long until nothing counts, after `total(now)`."""
        return self._times[-1] + WINDOW_US - now if self._times else 0
