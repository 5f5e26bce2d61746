"""Where tokens have occurred before: a chain for each n-gram, from its last occurrence to those before it, as
compressors have them. Along the chain of the newest n-gram the longest match is found. Many tokens are added by numpy,
few one by one.
"""

from __future__ import annotations

from array import array

import numpy as np

from penstock.kernels.arrays import Array

CANDIDATES = 16  # occurrences that are compared, the newest first: more find hardly anything better
LONGEST = 32  # tokens that are compared
FEW = 16  # tokens up to which adding them one by one is faster
_BACK = np.arange(LONGEST)


class NgramIndex:
    """Of one sequence. Holds no tokens."""

    def __init__(self, least: int = 2) -> None:
        """`least`: tokens of a match, 1 or 2, which are the n-grams. Matches of 1 have no more: this index is asked
        where no pair has occurred."""
        self._least = least
        self._last: dict[int, int] = {}  # n-gram -> position behind its last occurrence
        self._before = array("i", [0] * least)  # by position: that of the occurrence before; 0: there is none
        self._size = least - 1  # positions whose n-grams are there

    def extend(self, known: Array, end: int) -> None:
        """Add the n-grams that end before `end`."""
        first = self._size + 1  # positions behind the new n-grams: first .. end
        if first > end:
            return
        self._size = end
        tokens = known[first - self._least : end]
        if end - first < FEW:
            few: list[int] = tokens.tolist()
            for place in range(end - first + 1):
                gram = few[place] if self._least == 1 else few[place] << 32 | few[place + 1]
                self._before.append(self._last.get(gram, 0))
                self._last[gram] = first + place
        else:
            wide = tokens.astype(np.int64)
            self._extend_by_many(wide if self._least == 1 else wide[:-1] << 32 | wide[1:], first)

    def _extend_by_many(self, grams: Array, first: int) -> None:
        order = grams.argsort(kind="stable")  # occurrences of an n-gram one behind the other, in their order
        ordered = grams[order]
        repeats = ordered[1:] == ordered[:-1]
        before = np.zeros(len(grams), dtype=np.int32)
        before[order[1:][repeats]] = order[:-1][repeats] + first
        begins = np.flatnonzero(np.concatenate(([True], ~repeats)))
        ends = np.concatenate((begins[1:], [len(grams)])) - 1
        if self._last:
            known = [self._last.get(pair, 0) for pair in ordered[begins].tolist()]
            before[order[begins]] = known
        self._before.frombytes(before.tobytes())
        self._last.update(zip(ordered[ends].tolist(), (order[ends] + first).tolist(), strict=True))

    def find(self, known: Array, within: Array) -> tuple[int, int] | None:
        """Where the tokens at the end of `known` have occurred in `within`, whose n-grams these are: the position
        behind them, and how many are the same, looking back from there. Of several that are as long, one that goes on
        as most of them do, the first of those. Of a sequence itself, call `extend` with its length - 1 before."""
        if len(known) < self._least:
            return None
        newest: list[int] = known[-self._least :].tolist()
        position = self._last.get(newest[0] if self._least == 1 else newest[0] << 32 | newest[1], 0)
        if not position:
            return None
        places = [position]
        while len(places) < CANDIDATES and (position := self._before[position]):
            places.append(position)
        if self._least == 1:
            return _first_of_most(places, within), 1
        found = np.array(places)
        same = _common(known, within, found)
        longest = int(same.max())
        return _first_of_most(found[same == longest].tolist(), within), longest


def _first_of_most(places: list[int], within: Array) -> int:
    """Of `places`, the newest first, the oldest that goes on as most of them do."""
    if len(places) == 1:
        return places[0]
    following: list[int] = within[places].tolist()
    counts = [following.count(token) for token in following]
    most = max(counts)
    return next(place for place, count in zip(reversed(places), reversed(counts), strict=True) if count == most)


def _common(known: Array, within: Array, positions: Array) -> Array:
    """[positions] how many tokens of `within` before each are the same as those at the end of `known`."""
    back = _BACK[: min(LONGEST, len(known))]
    at = positions[:, None] - 1 - back
    same = within[at.clip(0)] == known[len(known) - 1 - back]
    same &= at >= 0
    different = ~same
    return np.where(different.any(1), different.argmax(1), len(back))
