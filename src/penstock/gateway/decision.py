"""A routing decision: filters and one policy over a snapshot.

candidates ─► available ─► in the region, if any is ─► ranked by the policy, stale ones last ─► the first
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.flow.routing import Considered, Decision
from penstock.gateway.candidate import Candidate, Demand
from penstock.gateway.policies import POLICIES

BY_PREFIX = ("prefix", "ttft", "cost")  # policies that ask for cached prefixes


def decide(demand: Demand, candidates: Sequence[Candidate], policy: str) -> Decision:
    """Pure: the same arguments give the same decision."""
    available = [one for one in candidates if one.blocked is None]
    rejected = [Considered(one.name, False, one.blocked) for one in candidates if one.blocked is not None]
    local = [one for one in available if demand.region is None or one.region == demand.region]
    if local and len(local) < len(available):
        rejected += [
            Considered(one.name, False, f"region {one.region or 'none'}, not {demand.region}")
            for one in available
            if one not in local
        ]
        available = local
    ranked = POLICIES[policy](demand, available)
    ranked.sort(key=lambda one: one.candidate.stale_load)
    considered = [Considered(one.candidate.name, place == 0, one.reason, one.score) for place, one in enumerate(ranked)]
    return Decision(
        policy=policy,
        chosen=ranked[0].candidate.name if ranked else None,
        considered=(*considered, *rejected),
        warnings=_stale_signals(available, policy),
    )


def _stale_signals(candidates: Sequence[Candidate], policy: str) -> tuple[str, ...]:
    """What the decision could not rely on."""
    texts = [
        f"load of {one.name} is {one.load_age_s:.0f} s old" for one in candidates if one.stale_load and one.load_age_s
    ]
    if policy in BY_PREFIX:
        texts += [f"cached prefixes of {one.name} are not as expected" for one in candidates if not one.prefix_trusted]
    return tuple(texts)
