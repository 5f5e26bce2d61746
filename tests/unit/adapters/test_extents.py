"""Parts of a memory: none overlaps another, and what is given back is whole again."""

from __future__ import annotations

import random

from penstock.adapters.extents import Extents


def test_parts_do_not_overlap_and_merge_again() -> None:
    extents, draw = Extents(1000), random.Random(0)
    taken: list[tuple[int, int]] = []
    refused = 0
    for _ in range(5000):
        if taken and draw.random() < 0.5:
            begin, size = taken.pop(draw.randrange(len(taken)))
            kept = draw.randrange(size + 1)  # the end goes first, as of what was reserved and not used
            extents.give(begin + kept, size - kept)
            extents.give(begin, kept)
        else:
            size = draw.randint(1, 120)
            place = extents.take(size)
            if place is None:
                refused += 1
            else:
                taken.append((place, size))
        ends = [0, *(end for begin, size in sorted(taken) for end in (begin, begin + size)), 1000]
        assert ends == sorted(ends)
        assert extents.free == 1000 - sum(size for _, size in taken)
    assert refused > 10
    for begin, size in taken:
        extents.give(begin, size)
    assert extents.take(1000) == 0
    assert extents.take(1) is None


def test_the_first_that_fits_is_taken() -> None:
    extents = Extents(100)
    assert [extents.take(30), extents.take(10), extents.take(30)] == [0, 30, 40]
    extents.give(0, 30)
    assert extents.take(31) is None
    assert extents.take(20) == 0
    assert extents.take(30) == 70
