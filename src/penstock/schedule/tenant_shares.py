"""Fair shares between tenants, by virtual token counters (VTC; Sheng et al., "Fairness in Serving Large Language
Models", OSDI 2024).

Within a tier the tenant with the smallest counter goes first. Every planned row adds its cost, divided by the tenant's
weight. A row costs its tokens and one more: a prompt token 1, an output token, which has a row of its own, 2. That is
about their ratio on a GPU and on a CPU, since decoding uses the hardware less well than prefill. Cached tokens cost
nothing, and neither does the recomputation after a preemption: a tenant pays for what its sequences keep.

A tenant without open sequences saves nothing up. When it becomes active again, its counter is lifted to the smallest
one of the active tenants in its tier.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.flow import Submit
from penstock.schedule.wait_totals import WaitTotals

ROW_COST = 1  # in tokens, of a row besides its tokens
MIN_WEIGHT = 1e-3
MAX_IDLE = 1024  # shares that are kept without open sequences

Level = tuple[bool, int]  # background, tier


def cost_of(tokens: int) -> int:
    """Of a row."""
    return tokens + ROW_COST


@dataclass(slots=True, eq=False)
class TenantShare:
    """A tenant in a tier, with its virtual token counter."""

    tenant: str
    level: Level
    weight: float = 1.0
    counter: float = 0.0  # cost / weight of what it was served, and what it was lifted by
    activation: int = 0  # of equal counters the one activated last goes first
    open: int = 0  # sequences, waiting or running
    aged: int = 0  # of its sequences, those promoted to the tier above
    cost: int = 0  # of all it was served
    admissions: int = 0
    waits: WaitTotals | None = None  # the recorder's
    key: tuple[bool, int, float, int] = field(init=False)  # shares go by it

    def __post_init__(self) -> None:
        self.update_key()

    @property
    def background(self) -> bool:
        return self.level[0]

    @property
    def tier(self) -> int:
        return self.level[1]

    def charge(self, cost: int) -> None:
        """Add the cost of planned rows; a negative one is a correction."""
        self.cost += cost
        self.counter += cost / self.weight
        self.update_key()

    def update_key(self) -> None:
        self.key = (*self.level, self.counter, -self.activation)


class TenantShares:
    """The shares of all tenants. Under a policy that is not `fair` there is one share for all sequences."""

    def __init__(self, *, fair: bool) -> None:
        self.fair = fair
        self._shares: dict[tuple[Level, str], TenantShare] = {}
        self._active: dict[Level, set[TenantShare]] = {}  # those with open sequences
        self._floors: dict[Level, float] = {}  # the counter of the last share to leave a level that is empty now
        self._activations = 0
        self.num_active = 0

    def join(self, message: Submit) -> TenantShare:
        """The share of a sequence that opens."""
        if not self.fair:
            return self._enter("", (False, 0), 1.0)
        return self._enter(message.tenant, (message.background, message.tier), max(message.weight, MIN_WEIGHT))

    def promote(self, share: TenantShare) -> TenantShare:
        """Move one of its sequences to the tenant's share one tier up, which is returned."""
        upper = self._enter(share.tenant, (share.background, share.tier - 1), share.weight)
        self.leave(share)
        return upper

    def leave(self, share: TenantShare) -> None:
        """One of its sequences has ended."""
        share.open -= 1
        if share.open:
            return
        active = self._active[share.level]
        active.remove(share)
        self.num_active -= 1
        if not active:
            del self._active[share.level]
            self._floors[share.level] = share.counter
        if len(self._shares) > MAX_IDLE + self.num_active:
            self._forget_idle()

    def active(self, level: Level) -> Iterable[TenantShare]:
        return self._active.get(level, ())

    def best_tier(self) -> int:
        """The best tier with open foreground sequences; 0 if there are none."""
        return min((tier for background, tier in self._active if not background), default=0)

    def snapshot(self) -> list[TenantShare]:
        return list(self._shares.values())

    def _enter(self, tenant: str, level: Level, weight: float) -> TenantShare:
        share = self._shares.get((level, tenant))
        if share is None:
            share = self._shares[level, tenant] = TenantShare(tenant, level)
        share.weight = weight
        if not share.open:
            self._activate(share)
        share.open += 1
        return share

    def _activate(self, share: TenantShare) -> None:
        active = self._active.setdefault(share.level, set())
        floor = min((one.counter for one in active), default=self._floors.get(share.level, 0.0))
        active.add(share)
        self.num_active += 1
        self._activations += 1
        share.activation = self._activations
        share.counter = max(share.counter, floor)
        share.update_key()

    def _forget_idle(self) -> None:
        """Drop half of the idle shares: those with the smallest counters, which would be lifted anyway."""
        idle = sorted((share for share in self._shares.values() if not share.open), key=lambda share: share.counter)
        for share in idle[: len(idle) // 2]:
            del self._shares[share.level, share.tenant]
