"""The likely cause of a missed objective, from the requests and points of its window."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from penstock.flow import record
from penstock.flow.record import WAITS
from penstock.observe.history import Point
from penstock.observe.slo.spend import Spike
from penstock.observe.trace.journal import Journal
from penstock.observe.trace.records import RequestTrace

LARGE = 0.5  # of a time that is to be explained
NOTABLE = 0.25
EXAMPLES = 5


class Cause(NamedTuple):
    name: str  # queue, long_prefill, cache_thrashing, slow_client, engine_down, errors, load, gpu_memory, spend_spike …
    evidence: str
    requests: list[str]  # ids of examples
    tenant: str | None = None  # which alone it concerns, and which alone is shown it


def slow_first_token(journal: Journal, slow: list[RequestTrace]) -> Cause:
    """Of `slow` requests, whose first token came late."""
    queue, prefill, total = 0.0, 0.0, 0.0
    waits: Counter[str] = Counter()
    evicted = 0
    for request in slow:
        first = request.sequences[0]
        if first.admitted is None or first.first_token is None:
            continue
        total += request.first_token_s or 0.0
        queue += first.admitted - first.queued
        prefill += first.first_token - first.admitted
        waits.update(dict(zip(WAITS, first.waits_us, strict=True)))
        evicted += first.finding.reason == record.EVICTED
    names = _examples(slow)
    if not total:
        return Cause("unknown", "none of the slow requests is in the journal any more", names)
    if queue > LARGE * total:
        reason = max(waits, key=lambda name: waits[name]) if waits else "step"
        evidence = f"{queue / total:.0%} of the TTFT was spent in the queue, mostly waiting for {_WAITS_FOR[reason]}"
        return Cause("cache_thrashing" if reason == "blocks" and evicted else "queue", evidence, names)
    if evicted > NOTABLE * len(slow):
        evidence = (
            f"{evicted} of {len(slow)} slow requests computed a prefix again that had been evicted from the cache"
        )
        return Cause("cache_thrashing", evidence, names)
    if prefill > LARGE * total:
        length = sum(request.prompt_tokens - request.cached_tokens for request in slow) // max(1, len(slow))
        evidence = f"{prefill / total:.0%} of the TTFT went into prefill, {length} new tokens each"
        return Cause("long_prefill", evidence, names)
    return Cause("load", f"queue {queue / total:.0%}, prefill {prefill / total:.0%} of the time", names)


def slow_decode(points: list[Point], prefill_share: float, slow: list[RequestTrace]) -> Cause:
    """Of `slow` requests, whose tokens came slowly. `prefill_share`: of the step time, in steps with prompt tokens."""
    names = _examples(slow)
    preemptions = sum(point.preemptions for point in points)
    writing = sum(request.write_us for request in slow) * 1e-6
    lived = sum((request.end or request.accepted) - request.accepted for request in slow)
    if lived and writing > NOTABLE * lived:
        return Cause("slow_client", f"{writing / lived:.0%} of their time was spent writing to their sockets", names)
    if preemptions:
        evidence = f"{preemptions} sequences were preempted for KV blocks and recomputed"
        return Cause("cache_thrashing", evidence, names)
    if prefill_share > NOTABLE:
        return Cause("long_prefill", f"{prefill_share:.0%} of the step time went into steps with prefill", names)
    steps = sum(point.steps for point in points)
    batch = sum(point.rows for point in points) / steps if steps else 0.0
    return Cause("load", f"{batch:.1f} sequences shared each step", names)


def failures(failed: list[RequestTrace]) -> Cause:
    codes = Counter(request.code or "unknown" for request in failed)
    code, count = codes.most_common(1)[0] if codes else ("unknown", 0)
    name = "engine_down" if code == "engine_died" else "errors"
    return Cause(name, f"{count} of {len(failed)} failed with {code}", _examples(failed))


def full_cache(points: list[Point], journal: Journal) -> Cause:
    preemptions = sum(point.preemptions for point in points)
    names = _examples(list(journal.open.values()))
    if preemptions:
        return Cause("cache_thrashing", f"{preemptions} sequences were preempted for KV blocks", names)
    return Cause("load", f"{journal.running} sequences run at once", names)


def full_gpu(points: list[Point], journal: Journal) -> Cause:
    """The engine's share of a GPU is reserved at its start, so other processes make the difference."""
    used = [point.gpu["memory_used"] for point in points if point.gpu is not None]
    grown = (max(used) - min(used)) / 1e9 if used else 0.0
    most = max(used, default=0) / 1e9
    evidence = f"all processes use {most:.1f} GB, {grown:.1f} GB more than at the window's least"
    return Cause("gpu_memory", evidence, _examples(list(journal.open.values())))


def long_queue(points: list[Point], journal: Journal, *, ready: bool) -> Cause:
    names = _examples(list(journal.open.values()))
    if not ready:
        return Cause("engine_down", "the engine is down", names)
    longest = max(journal.replicas.values(), key=lambda replica: replica.level.waiting)
    reason = WAITS[longest.level.blocked]
    preemptions = sum(point.preemptions for point in points)
    evidence = f"{journal.waiting} sequences wait, the first of them for {_WAITS_FOR[reason]}"
    return Cause("cache_thrashing" if reason == "blocks" and preemptions else "queue", evidence, names)


def spend_spike(spike: Spike, window_s: float, requests: list[RequestTrace]) -> Cause:
    """`requests` of the window; the tenant's dearest are the examples."""
    own = [request for request in requests if request.tenant == spike.tenant and request.microusd]
    own.sort(key=lambda request: request.microusd or 0, reverse=True)
    evidence = (
        f"{spike.microusd / 1e6:.4f} USD were spent in {window_s / 60:.3g} minutes, where the mean of the last day is "
        f"{spike.mean_microusd / 1e6:.4f}"
    )
    return Cause("spend_spike", evidence, _examples(own), spike.tenant)


_WAITS_FOR = {
    "step": "the step under way",
    "budget": "room in a step (step_tokens)",
    "slot": "a slot (max_sequences)",
    "blocks": "KV blocks",
    "prefix": "a prefix that another sequence computes",
    "constraint": "its constraint to be compiled",
    "adapter": "its adapter to be loaded",
    "share": "its tenant's turn",
    "fetch": "a prefix from a lower cache tier",
}


def _examples(requests: list[RequestTrace]) -> list[str]:
    return [request.id for request in requests[:EXAMPLES]]
