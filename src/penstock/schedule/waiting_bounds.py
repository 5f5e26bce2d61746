"""How many sequences may wait: in all, and of each tenant."""

from __future__ import annotations

from penstock.errors import QueueFull
from penstock.schedule.queues import SequenceQueues, TenantLoad

NO_LOAD = TenantLoad()


class WaitingBounds:
    """Refuses sequences of the tenants that fill the queue, not of the others: when it is full, a tenant may still
    queue until it has an equal part of it. So at most twice as many wait as `most` says."""

    def __init__(self, most: int, per_tenant: int | None = None) -> None:
        self._most = most
        self._per_tenant = per_tenant

    def check(self, tenant: str, queues: SequenceQueues) -> None:
        """Raises QueueFull."""
        free = len(queues.slots)
        if self._per_tenant is not None:
            own = queues.tenants.get(tenant, NO_LOAD).waiting
            if own >= self._per_tenant + free:
                raise QueueFull(
                    f"{self._per_tenant} sequences of this tenant are waiting already, as many as one tenant may have "
                    "(max_waiting_per_tenant); try again later"
                )
        waiting = queues.num_waiting
        if waiting < self._most + free:
            return
        own = queues.tenants.get(tenant, NO_LOAD).waiting
        tenants = len(queues.tenants) + (tenant not in queues.tenants)
        if own >= max(1, self._most // tenants) or waiting >= 2 * self._most + free:
            whose = f", {own} of them of this tenant" if own < waiting else ""
            raise QueueFull(f"{self._most} sequences are waiting already{whose}; try again later")
