"""Contiguous parts of a memory, as offsets and sizes: first fit."""

from __future__ import annotations

from bisect import bisect_left


class Extents:
    """Sizes are of one model's adapters, so those that go leave places of sizes that others need."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free: list[tuple[int, int]] = [(0, size)] if size else []  # begin, end; ascending, none touches the next

    @property
    def free(self) -> int:
        return sum(end - begin for begin, end in self._free)

    def take(self, size: int) -> int | None:
        """Where it begins; None: no free part is as large."""
        for place, (begin, end) in enumerate(self._free):
            if end - begin >= size:
                if end - begin == size:
                    del self._free[place]
                else:
                    self._free[place] = (begin + size, end)
                return begin
        return None

    def give(self, begin: int, size: int) -> None:
        """Back, in whole or in part."""
        if not size:
            return
        end, place = begin + size, bisect_left(self._free, (begin, begin))
        if place < len(self._free) and self._free[place][0] == end:
            end = self._free.pop(place)[1]
        if place and self._free[place - 1][1] == begin:
            begin = self._free.pop(place - 1)[0]
            place -= 1
        self._free.insert(place, (begin, end))
