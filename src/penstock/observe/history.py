"""The last hour in points of two seconds, for charts."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass
from statistics import mean
from typing import Any

from penstock.observe.machine import MachineUse
from penstock.observe.performance import percentile_us
from penstock.observe.trace.journal import Journal

INTERVAL_S = 2.0
MAX_POINTS = 1800
GAP_CLASS = math.log(1.05)  # gaps between tokens are kept in classes of 5%
LEAST_GAP_S = 1e-6


@dataclass(slots=True)
class Point:
    t: float
    first_tokens: list[float]  # TTFT in seconds, of requests whose first token came in this interval
    latencies: list[float]  # seconds, of requests that ended
    queue_times: list[float]  # seconds, of requests that ended
    gaps: Counter[int]  # between two tokens of a sequence: how many, by class of their length
    tokens: int
    prompt_tokens: int
    hit_tokens: int
    requests: int
    errors: int
    preemptions: int
    steps: int
    rows: int
    step_s: float
    running: int
    waiting: int
    kv_use: float
    gpu: dict[str, Any] | None
    machine: MachineUse | None


class History:
    """Points of the whole server: all replicas together."""

    def __init__(self, journal: Journal) -> None:
        self.points: deque[Point] = deque(maxlen=MAX_POINTS)
        self._journal = journal
        self._before = journal.totals
        self._since = journal.clock()

    def sample(self, gpu: dict[str, Any] | None, machine: MachineUse | None = None) -> Point:
        """Append the point of the interval that ends now."""
        journal, before = self._journal, self._before
        totals, now, since = journal.totals, journal.clock(), self._since
        ended = []
        for request in reversed(journal.done):
            if request.end is None or request.end < since:
                break
            ended.append(request)
        first = []
        for t, seconds in reversed(journal.first_tokens):
            if t < since:
                break
            first.append(seconds)
        point = Point(
            t=now,
            first_tokens=first,
            latencies=[r.end - r.accepted for r in ended if r.end is not None and r.finish != "rejected"],
            queue_times=[s.admitted - s.queued for r in ended for s in r.sequences if s.admitted is not None],
            gaps=self._take_gaps(),
            tokens=totals.output_tokens - before.output_tokens,
            prompt_tokens=totals.prompt_tokens - before.prompt_tokens,
            hit_tokens=totals.hit_tokens - before.hit_tokens,
            requests=totals.requests - before.requests,
            errors=totals.errors - before.errors,
            preemptions=totals.preemptions - before.preemptions,
            steps=totals.steps - before.steps,
            rows=totals.rows - before.rows,
            step_s=totals.step_s - before.step_s,
            running=journal.running,
            waiting=journal.waiting,
            kv_use=journal.kv_use,
            gpu=gpu,
            machine=machine,
        )
        self.points.append(point)
        self._before = totals
        self._since = now
        return point

    def _take_gaps(self) -> Counter[int]:
        """Those of all replicas since the last point, in classes."""
        classes: Counter[int] = Counter()
        for replica in list(self._journal.replicas.values()):
            while replica.token_gaps:
                gap, count = replica.token_gaps.popleft()
                classes[round(math.log(max(gap, LEAST_GAP_S)) / GAP_CLASS)] += count
        return classes

    def columns(self, seconds: float, max_points: int) -> dict[str, Any]:
        """The last `seconds` as arrays of at most `max_points` values, oldest first."""
        begin = self._journal.clock() - seconds
        points = [point for point in self.points if point.t >= begin]
        size = max(1, -(-len(points) // max_points))
        groups = [points[place : place + size] for place in range(0, len(points), size)]
        columns: dict[str, list[Any]] = {}
        for group in groups:
            for name, value in self._join(group).items():
                columns.setdefault(name, []).append(value)
        empty = self._join([]) if not columns else {}
        return {"interval_s": size * INTERVAL_S, **{name: [] for name in empty}, **columns}

    def _join(self, group: list[Point]) -> dict[str, Any]:
        span = len(group) * INTERVAL_S or INTERVAL_S
        first = sorted(value for point in group for value in point.first_tokens)
        latencies = sorted(value for point in group for value in point.latencies)
        queue_times = sorted(value for point in group for value in point.queue_times)
        gaps = sum((point.gaps for point in group), Counter())
        requests, errors = sum(p.requests for p in group), sum(p.errors for p in group)
        steps, prompts = sum(p.steps for p in group), sum(p.prompt_tokens for p in group)
        gpus = [point.gpu for point in group if point.gpu is not None]
        machines = [point.machine for point in group if point.machine is not None]
        return {
            "t": self._journal.at(group[-1].t) if group else None,
            "ttft_us_p50": percentile_us(first, 0.5),
            "ttft_us_p95": percentile_us(first, 0.95),
            "ttft_us_p99": percentile_us(first, 0.99),
            "e2e_us_p50": percentile_us(latencies, 0.5),
            "e2e_us_p95": percentile_us(latencies, 0.95),
            "e2e_us_p99": percentile_us(latencies, 0.99),
            "queue_us_p50": percentile_us(queue_times, 0.5),
            "queue_us_p95": percentile_us(queue_times, 0.95),
            "inter_token_us_p50": _gap_percentile_us(gaps, 0.5),
            "inter_token_us_p95": _gap_percentile_us(gaps, 0.95),
            "inter_token_us_p99": _gap_percentile_us(gaps, 0.99),
            "tokens_per_s": round(sum(p.tokens for p in group) / span, 2),
            "prompt_tokens_per_s": round(prompts / span, 2),
            "running": max((p.running for p in group), default=0),
            "waiting": max((p.waiting for p in group), default=0),
            "kv_use": max((p.kv_use for p in group), default=0.0),
            "requests_per_s": round(requests / span, 3),
            "errors": errors,
            "error_rate": round(errors / requests, 4) if requests else None,
            "preemptions": sum(p.preemptions for p in group),
            "step_us_mean": round(sum(p.step_s for p in group) * 1e6 / steps) if steps else None,
            "batch_mean": round(sum(p.rows for p in group) / steps, 2) if steps else None,
            "prefix_hit_ratio": round(sum(p.hit_tokens for p in group) / prompts, 4) if prompts else None,
            "gpu_utilisation": round(mean(gpu["utilisation"] for gpu in gpus), 3) if gpus else None,
            "gpu_memory": max(gpu["memory_used"] for gpu in gpus) if gpus else None,
            "gpu_memory_total": gpus[-1]["memory_total"] if gpus else None,
            "cpu": _mean([one.cpu for one in machines]),
            "server_cpu": _mean([one.server_cpu for one in machines]),
            "memory": max((one.memory_used for one in machines), default=None),
            "memory_total": machines[-1].memory_total if machines else None,
            "server_memory": max((one.server_memory for one in machines), default=None),
        }


def _gap_percentile_us(gaps: Counter[int], share: float) -> int | None:
    """Nearest rank, as the middle of its class."""
    left = max(1, math.ceil(gaps.total() * share))
    for place in sorted(gaps):
        left -= gaps[place]
        if left <= 0:
            return round(math.exp(place * GAP_CLASS) * 1e6)
    return None


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(mean(known), 4) if known else None
