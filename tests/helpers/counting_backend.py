"""A fake runner: no model, no device."""

from __future__ import annotations

from penstock.flow import RowResult, StepPlan, StepResult


class CountingBackend:
    """Implements flow.Backend; the token it samples for a row is the row's length."""

    def __init__(self, *, releases: bool = False) -> None:
        """`releases`: it can give its memory back."""
        self.plans: list[StepPlan] = []
        self.releases = releases
        self.released = False

    def launch(self, plan: StepPlan) -> None:
        self.plans.append(plan)

    def collect(self) -> StepResult:
        plan = self.plans.pop(0)
        return StepResult(plan.number, [RowResult([row.start + row.count] if row.sample else []) for row in plan.rows])

    def reset(self) -> None:
        self.plans.clear()

    def release_memory(self) -> bool:
        self.released = self.releases
        return self.releases

    def restore_memory(self) -> None:
        assert self.released
        self.released = False
