"""Which running sequence gives its slot and blocks to a tenant that waits.

A tenant of a better tier takes them from a worse one. Within a tier the waiting tenant must have been served no more
than the other (by its virtual token counter), hold less than half of its fair share of what is short, and the other
must hold more than its own. Between these two bounds nothing moves, and a sequence yields at most MAX_YIELDS times, so
that tenants cannot take the same slots from each other over and over.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.schedule.policy_order import PolicyOrder
from penstock.schedule.sequence import Sequence
from penstock.schedule.tenant_shares import TenantShare, TenantShares

MAX_YIELDS = 4

Hold = Callable[[list[Sequence]], int]  # how much of what is short these running sequences hold


def slots_held(sequences: list[Sequence]) -> int:
    return len(sequences)


def blocks_held(sequences: list[Sequence]) -> int:
    return sum(len(group) for sequence in sequences if sequence.table for group in sequence.table.blocks)


def choose_victim(
    waiting: TenantShare, running: PolicyOrder, shares: TenantShares, total: int, held: Hold
) -> Sequence | None:
    """The sequence to preempt for the share that waits; None: it has to wait. `total` is all there is of what is short;
    `held` measures it."""
    if waiting.background:
        return None
    weights = sum(share.weight for share in shares.active(waiting.level))
    fair = total / weights  # per unit of weight
    own = held(running.of_share(waiting))
    owed = own == 0 or own < fair * waiting.weight / 2
    for share, sequences in reversed(running.groups):
        if share.background or share is waiting:
            continue
        if share.tier < waiting.tier:
            break
        candidates = sequences
        if share.tier == waiting.tier:
            if not owed or share.counter < waiting.counter or held(sequences) <= fair * share.weight:
                continue
            candidates = sequences[1:]  # its first one always goes on
        if victims := [sequence for sequence in reversed(candidates) if sequence.yields < MAX_YIELDS]:
            return min(victims, key=lambda sequence: sequence.yields)  # the newest of those that have yielded least
    return None
