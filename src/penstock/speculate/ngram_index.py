"""Where tokens have occurred before. For each position the n-gram that ends there is remembered, for a long and a short
n, with the position of its last occurrence. Many tokens are hashed by numpy, few one by one.
"""

from __future__ import annotations

import numpy as np

from penstock.kernels.arrays import Array

NGRAMS = (8, 3)  # tokens, the longest first
MULTIPLIER = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1
_POWERS = np.array([pow(MULTIPLIER, power, 1 << 64) for power in range(NGRAMS[0])], dtype=np.uint64)
FEW = 16  # tokens up to which hashing them one by one is faster


class NgramIndex:
    """Where the n-grams of one sequence have ended. Holds no tokens."""

    def __init__(self) -> None:
        self._ends: tuple[dict[int, int], ...] = tuple({} for _ in NGRAMS)  # hash -> position behind it
        self._size = 0  # positions whose n-grams are there

    def extend(self, known: Array, end: int) -> None:
        """Add the n-grams that end before `end`."""
        start = self._size
        if end <= start:
            return
        self._size = end
        for n, ends in zip(NGRAMS, self._ends, strict=True):
            first = max(start + 1, n)  # positions behind the n-grams: first .. end
            if first > end:
                continue
            if end - first < FEW:
                for position in range(first, end + 1):
                    ends[_hash(known[position - n : position].tolist())] = position
            else:
                ends.update(zip(_hashes(known[first - n : end], n).tolist(), range(first, end + 1), strict=True))

    def find(self, known: Array, within: Array) -> tuple[int, int] | None:
        """Where the tokens at the end of `known` have occurred in `within`, whose n-grams these are: the position
        behind them, and how many are the same, looking back from there. Of a sequence itself, call `extend` with its
        length - 1 before."""
        length = len(known)
        for n, ends in zip(NGRAMS, self._ends, strict=True):
            if length < n:
                continue
            position = ends.get(_hash(known[length - n :].tolist()))
            if position is not None and (same := _common(known, within, position)) >= n:
                return position, same
        return None


def _common(known: Array, within: Array, position: int, most: int = 64) -> int:
    """How many tokens of `within` before `position` are the same as those at the end of `known`."""
    length = min(most, position, len(known))
    same = within[position - length : position] == known[len(known) - length :]
    different = np.flatnonzero(~same)
    return length if not len(different) else length - 1 - int(different[-1])


def _hash(tokens: list[int]) -> int:
    value = 0
    for token in tokens:
        value = (value * MULTIPLIER + token) & _WORD
    return value


def _hashes(tokens: Array, n: int) -> Array:
    """Of all n-grams of `tokens` [n - 1 + count]: [count] uint64."""
    words = tokens.astype(np.uint64)
    count = len(tokens) - n + 1
    sums = np.zeros(count, dtype=np.uint64)
    for offset in range(n):
        sums += words[offset : offset + count] * _POWERS[n - 1 - offset]
    return sums
