"""Routing policies: pure functions from a request and candidates to a ranking, best first. Ties keep the given order.

name      the order in which the candidates are configured
load      the fewest queued tokens
prefix    the fewest tokens to wait for: queued ones, and those of the prompt that are not cached there
ttft      the cheapest of those that are predicted to meet the target; else the fastest
cost      the lowest price

`load` and `prefix` also count what a candidate was given lately beyond its share. Without it, idle candidates would
never divide the work: all requests that begin with the same system prompt would go to the one that saw it first. And
a candidate whose slots are all taken is as one with more tokens queued: those that it could compute until one is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from penstock.gateway.candidate import Candidate, Demand

# `bench/routing.py` has the figures that these were chosen by.
QUEUED = 0.5  # of an uncached token: waiting for others costs time, computing again costs time and capacity
SHARE = 1.15  # a candidate may be given so many times the mean before that counts
BALANCE = 0.05  # of an uncached token: each token given lately beyond that


class Ranked(NamedTuple):
    candidate: Candidate
    score: float  # smaller is better; comparable within one ranking only
    reason: str


Policy = Callable[[Demand, Sequence[Candidate]], list[Ranked]]


def by_name(demand: Demand, candidates: Sequence[Candidate]) -> list[Ranked]:
    return [Ranked(one, float(place), f"choice {place + 1}") for place, one in enumerate(candidates)]


def by_load(demand: Demand, candidates: Sequence[Candidate]) -> list[Ranked]:
    return _sorted(
        Ranked(one, _queued(one) + BALANCE * excess, f"{one.queued_tokens} tokens queued{_wait(one)}")
        for one, excess in zip(candidates, _excess(candidates), strict=True)
    )


def by_prefix(demand: Demand, candidates: Sequence[Candidate]) -> list[Ranked]:
    ranked = []
    for one, excess in zip(candidates, _excess(candidates), strict=True):
        uncached = one.uncached_tokens(demand)
        cached = demand.prompt_tokens - uncached
        reason = f"{cached} of {demand.prompt_tokens} tokens cached, {one.queued_tokens} queued{_wait(one)}"
        ranked.append(Ranked(one, QUEUED * _queued(one) + uncached + BALANCE * excess, reason))
    return _sorted(ranked)


def by_ttft(demand: Demand, candidates: Sequence[Candidate]) -> list[Ranked]:
    """Without a target all are equal in that, and the fastest is first."""
    target = demand.ttft_target_s
    meeting, missing = [], []
    for one in candidates:
        predicted = one.ttft_s(demand)
        if target is not None and predicted <= target:
            meeting.append(Ranked(one, one.cost(demand), f"first token in {predicted:.3f} s, within {target:g} s"))
        else:
            over = "" if target is None else f", over {target:g} s"
            missing.append(Ranked(one, predicted, f"first token in {predicted:.3f} s{over}"))
    return sorted(meeting, key=lambda one: (one.score, one.candidate.ttft_s(demand))) + _sorted(missing)


def by_cost(demand: Demand, candidates: Sequence[Candidate]) -> list[Ranked]:
    return sorted(
        (Ranked(one, cost := one.cost(demand), f"costs {cost:.6g}") for one in candidates),
        key=lambda one: (one.score, one.candidate.queued_tokens),
    )


POLICIES: dict[str, Policy] = {
    "name": by_name,
    "load": by_load,
    "prefix": by_prefix,
    "ttft": by_ttft,
    "cost": by_cost,
}


def _queued(candidate: Candidate) -> float:
    return candidate.queued_tokens + candidate.wait_tokens


def _wait(candidate: Candidate) -> str:
    return f", {candidate.wait_s:.2g} s for a slot" if candidate.wait_s else ""


def _excess(candidates: Sequence[Candidate]) -> list[float]:
    """Tokens that each was given lately beyond its share."""
    mean = sum(one.recent_tokens for one in candidates) / max(len(candidates), 1)
    return [max(0.0, one.recent_tokens - SHARE * mean) for one in candidates]


def _sorted(ranked: Iterable[Ranked]) -> list[Ranked]:
    return sorted(ranked, key=lambda one: one.score)
