"""Replays recorded requests under static and under continuous batching. Computed, not measured: both run the same
requests with the same cost per step, which is fitted to the engine's real steps.

Static: up to `batch` requests that have arrived start together, and no other starts before the last of them has ended;
those that end early keep their lane. Continuous: a waiting request takes a lane as soon as one is free.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from penstock.observe.performance import StepCost, percentile


@dataclass(slots=True, eq=False)
class ReplayedSequence:
    """One recorded sequence. Times are microseconds from the first arrival."""

    number: int
    request: int
    arrival: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int

    def to_json(self) -> dict[str, Any]:
        return {
            "seq": self.number,
            "request": self.request,
            "arrival": round(self.arrival),
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
        }


@dataclass(slots=True)
class Run:
    job: ReplayedSequence
    lane: int
    start: float
    left: int  # output tokens still to come
    prefill_end: float = 0.0
    end: float = 0.0
    released: float = 0.0


@dataclass(slots=True)
class Clock:
    now: float = 0.0
    busy: float = 0.0  # lane-microseconds in which a lane did something for its request
    runs: list[Run] = field(default_factory=list)


def static_batching(jobs: list[ReplayedSequence], batch: int, cost: StepCost) -> dict[str, Any]:
    clock, waiting = Clock(), sorted(jobs, key=lambda job: job.arrival)
    while waiting:
        clock.now = max(clock.now, waiting[0].arrival)
        arrived = [job for job in waiting if job.arrival <= clock.now][:batch]
        waiting = [job for job in waiting if job not in arrived]
        running = [Run(job, lane, clock.now, job.output_tokens) for lane, job in enumerate(arrived)]
        clock.runs += running
        _step(clock, running, [], cost, lanes=len(running))
        while any(run.left for run in running):
            # All lanes are computed until the last one is done: that is what makes it static.
            _step(clock, [], running, cost, lanes=len(running))
        for run in running:
            run.released = clock.now
    return _summary(clock, batch)


def continuous_batching(jobs: list[ReplayedSequence], batch: int, cost: StepCost) -> dict[str, Any]:
    clock, waiting = Clock(), sorted(jobs, key=lambda job: job.arrival)
    running: list[Run] = []
    while waiting or running:
        if not running:
            clock.now = max(clock.now, waiting[0].arrival)
        free = sorted(set(range(batch)) - {run.lane for run in running})
        arrived = [job for job in waiting if job.arrival <= clock.now][: len(free)]
        new = [Run(job, lane, clock.now, job.output_tokens) for lane, job in zip(free, arrived, strict=False)]
        waiting = [job for job in waiting if job not in arrived]
        clock.runs += new
        _step(clock, new, running, cost, lanes=len(running))
        running = [run for run in running + new if run.left]
    return _summary(clock, batch)


def _step(clock: Clock, new: list[Run], running: list[Run], cost: StepCost, lanes: int) -> None:
    prompts = sum(run.job.prompt_tokens - run.job.cached_tokens for run in new)
    took = cost.step_us(lanes if running else 0, prompts)
    clock.now += max(took, 1.0)
    for run in new:
        run.prefill_end = clock.now
    for run in new + running:
        if run.left:
            clock.busy += took
            run.left -= 1
            run.end = run.released = clock.now


def _summary(clock: Clock, batch: int) -> dict[str, Any]:
    runs, begin = clock.runs, min(run.job.arrival for run in clock.runs)
    latencies = sorted(run.end - run.job.arrival for run in runs)
    span = max(clock.now - begin, 1.0)
    held = sum(run.released - run.start for run in runs)
    return {
        "makespan_us": round(span),
        "tokens_per_s": round(sum(run.job.output_tokens for run in runs) * 1e6 / span, 2),
        "latency_us_mean": round(mean(latencies)),
        "latency_us_p95": round(percentile(latencies, 0.95) or 0.0),
        "ttft_us_mean": round(mean(run.prefill_end - run.job.arrival for run in runs)),
        "utilisation": round(clock.busy / held, 4) if held else 0.0,
        "rows": [
            {
                "seq": run.job.number,
                "lane": run.lane,
                "start": round(run.start),
                "prefill_end": round(run.prefill_end),
                "end": round(run.end),
                "released": round(run.released),
            }
            for run in runs
        ],
    }
