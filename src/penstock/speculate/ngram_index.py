"""Where tokens have occurred before: a chain for each pair of tokens, from its last occurrence to those before it, as
compressors have them. Along the chain of the newest pair the longest match is found. Many tokens are added by numpy,
few one by one.
"""

from __future__ import annotations

from array import array

import numpy as np

from penstock.kernels.arrays import Array

LEAST = 2  # tokens of a match
CANDIDATES = 16  # occurrences that are compared, the newest first: more find hardly anything better
LONGEST = 32  # tokens that are compared
FEW = 16  # tokens up to which adding them one by one is faster
_BACK = np.arange(LONGEST)


class NgramIndex:
    """Of one sequence. Holds no tokens."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}  # pair -> position behind its last occurrence
        self._before = array("i", [0, 0])  # by position: that of the occurrence before; 0: there is none
        self._size = 1  # positions whose pairs are there

    def extend(self, known: Array, end: int) -> None:
        """Add the pairs that end before `end`."""
        first = self._size + 1  # positions behind the new pairs: first .. end
        if first > end:
            return
        self._size = end
        if end - first < FEW:
            tokens: list[int] = known[first - 2 : end].tolist()
            for place in range(len(tokens) - 1):
                pair = tokens[place] << 32 | tokens[place + 1]
                self._before.append(self._last.get(pair, 0))
                self._last[pair] = first + place
        else:
            self._extend_by_many(known[first - 2 : end].astype(np.int64), first)

    def _extend_by_many(self, tokens: Array, first: int) -> None:
        pairs = tokens[:-1] << 32 | tokens[1:]
        order = pairs.argsort(kind="stable")  # occurrences of a pair one behind the other, in their order
        ordered = pairs[order]
        repeats = ordered[1:] == ordered[:-1]
        before = np.zeros(len(pairs), dtype=np.int32)
        before[order[1:][repeats]] = order[:-1][repeats] + first
        begins = np.flatnonzero(np.concatenate(([True], ~repeats)))
        ends = np.concatenate((begins[1:], [len(pairs)])) - 1
        if self._last:
            known = [self._last.get(pair, 0) for pair in ordered[begins].tolist()]
            before[order[begins]] = known
        self._before.frombytes(before.tobytes())
        self._last.update(zip(ordered[ends].tolist(), (order[ends] + first).tolist(), strict=True))

    def find(self, known: Array, within: Array) -> tuple[int, int] | None:
        """Where the tokens at the end of `known` have occurred in `within`, whose pairs these are: the position behind
        them, and how many are the same, looking back from there. Of several that are as long, one that goes on as most
        of them do, the first of those. Of a sequence itself, call `extend` with its length - 1 before."""
        length = len(known)
        if length < LEAST:
            return None
        first, second = known[length - LEAST :].tolist()
        position = self._last.get(first << 32 | second, 0)
        if not position:
            return None
        places = [position]
        while len(places) < CANDIDATES and (position := self._before[position]):
            places.append(position)
        if len(places) == 1:
            return places[0], int(_common(known, within, np.array(places))[0])
        found = np.array(places)
        same = _common(known, within, found)
        longest = int(same.max())
        best = found[same == longest]
        following = within[best]
        tokens, counts = np.unique(following, return_counts=True)
        chosen = best[counts[np.searchsorted(tokens, following)] == counts.max()]
        return int(chosen[-1]), longest


def _common(known: Array, within: Array, positions: Array) -> Array:
    """[positions] how many tokens of `within` before each are the same as those at the end of `known`."""
    back = _BACK[: min(LONGEST, len(known))]
    at = positions[:, None] - 1 - back
    same = within[at.clip(0)] == known[len(known) - 1 - back]
    same &= at >= 0
    different = ~same
    return np.where(different.any(1), different.argmax(1), len(back))
