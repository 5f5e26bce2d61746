"""Allocates the runner's slots: one per running sequence."""

from __future__ import annotations

from collections import deque


class SlotAllocator:
    """Slots 0 .. count - 1. Like a KV block, a slot rests after its release while steps in flight may still use it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(reversed(range(count)))
        self._resting: deque[tuple[int, int]] = deque()  # (step it rests for, slot), ascending
        self._retired = 0

    def __len__(self) -> int:
        """How many can be allocated now."""
        return len(self._free)

    def allocate(self) -> int:
        return self._free.pop()

    def free(self, slot: int, step: int) -> None:
        """`step` is the newest planned step: the slot rests until it has retired."""
        if step > self._retired:
            self._resting.append((step, slot))
        else:
            self._free.append(slot)

    def retire(self, step: int) -> None:
        self._retired = step
        while self._resting and self._resting[0][0] <= step:
            self._free.append(self._resting.popleft()[1])

    def unused(self) -> list[int]:
        """Slots without a sequence, resting ones included."""
        return [*self._free, *(slot for _, slot in self._resting)]
