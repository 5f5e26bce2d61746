"""How many lines of batches run at once: as many as interactive requests leave room for."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable

import msgspec


class Capacity(msgspec.Struct, frozen=True):
    """Of one model, now."""

    slots: int  # sequences that run at once
    interactive: int  # requests that are open and not of a batch


def line_limit(capacity: Capacity) -> int:
    """Most lines that may run. On an idle model three quarters of its slots, so that interactive requests find free
    ones; beside interactive requests a quarter of what these leave."""
    free = max(0, capacity.slots - capacity.interactive)
    if capacity.interactive:
        return free // 4
    return max(1, free * 3 // 4)


class LineLimiter:
    """Admits lines up to the limit, one tenant after the other. The limit changes with the load; see `admit`."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self.limit = limit
        self.running = 0
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # by tenant; the next one first

    async def acquire(self, tenant: str) -> None:
        """Wait for a turn; `release` ends it."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self.admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # admitted meanwhile
                self.release()
            raise

    def release(self) -> None:
        self.running -= 1
        self.admit()

    def admit(self) -> None:
        """Admit as many as the limit allows now."""
        while self._waiting and self.running < self.limit():
            tenant, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[tenant] = turns  # behind the other tenants
            if not turn.done():  # otherwise it was cancelled
                self.running += 1
                turn.set_result(None)


class ModelLimiters:
    """One for each model."""

    def __init__(self, capacity: Callable[[str], Capacity | None]) -> None:
        """`capacity` is of a model; None: it is not served, or not ready."""
        self._capacity = capacity
        self._limiters: dict[str, LineLimiter] = {}

    @property
    def running(self) -> int:
        return sum(limiter.running for limiter in self._limiters.values())

    def of(self, model: str) -> LineLimiter:
        def limit() -> int:
            capacity = self._capacity(model)
            return 0 if capacity is None else line_limit(capacity)

        if model not in self._limiters:
            self._limiters[model] = LineLimiter(limit)
        return self._limiters[model]

    def admit(self) -> None:
        for limiter in self._limiters.values():
            limiter.admit()
