"""A world in which steps take time, as on a device: for latencies and shares under load."""

from __future__ import annotations

from collections import Counter
from typing import Any

from simulation.world import World

STEP_S = 0.02  # of any step
TOKEN_S = 0.001  # of each token in it
CHECK_EVERY = 50  # steps: the check takes longer than a step


class TimedWorld(World):
    def __init__(self, **options: Any) -> None:
        super().__init__(**({"spare_blocks": 2000} | options))
        self.step_times: list[float] = []
        self._first_tokens: dict[str, float] = {}
        self._unanswered: set[str] = set()

    def submit(self, prompt: list[int], **options: Any) -> str:
        id = super().submit(prompt, **options)
        self._unanswered.add(id)
        return id

    def run_steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def run_until(self, end: float) -> None:
        while self.now < end:
            if self.scheduler.has_work:
                self.step()
            else:
                self.now = end

    def first_token_s(self, id: str) -> float:
        return self._first_tokens[id] - self.clients[id].message.arrival

    def served(self) -> Counter[str]:
        """Cost by tenant so far."""
        counts: Counter[str] = Counter()
        for share in self.scheduler._queues.shares.snapshot():
            counts[share.tenant] += share.cost
        return counts

    def waiting(self, tenant: str) -> int:
        load = self.scheduler._queues.tenants.get(tenant)
        return 0 if load is None else load.waiting

    def half_step(self) -> None:
        if self.planned is None:
            self._plan()
        else:
            self._settle()
        if len(self.step_times) % CHECK_EVERY == 0:
            self.scheduler.check_integrity()

    def step(self) -> bool:
        busy = super().step()
        for id in [id for id in self._unanswered if self.clients[id].tokens]:
            self._first_tokens[id] = self.now
            self._unanswered.remove(id)
        return busy

    def _plan(self) -> None:
        super()._plan()
        if self.planned:
            seconds = STEP_S + TOKEN_S * sum(row.count for row in self.plans[-1].rows)
            self.step_times.append(seconds)
            self.now += seconds
