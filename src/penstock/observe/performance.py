"""Measured performance: throughput and latency figures, and the cost of a step fitted to a replica's recent steps."""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import median
from typing import Any, NamedTuple

from penstock.flow.identity import Source
from penstock.flow.record import DECODE, StepRecord
from penstock.observe.trace.journal import Journal

RECENT_STEPS = 4000
ENOUGH_STEPS = 16


class StepCost(NamedTuple):
    """The time of a step as a sum: fixed, per decoding sequence, per prompt token. Microseconds."""

    fixed_us: float
    decode_row_us: float
    prefill_token_us: float

    def step_us(self, decode_rows: int, prefill_tokens: int) -> float:
        return self.fixed_us + self.decode_row_us * decode_rows + self.prefill_token_us * prefill_tokens


def decode_rows_and_prompt_tokens(step: StepRecord) -> tuple[int, int]:
    decodes = sum(1 for word in step.words if word & DECODE)
    return decodes, sum(word for word in step.words if not word & DECODE)


def recent_steps(journal: Journal, source: Source | None = None) -> list[StepRecord]:
    """The newest steps of a replica; None: of the journal's default."""
    steps = journal.replica(source).steps
    return list(steps.between(steps.last - RECENT_STEPS + 1, steps.last))


def fit_step_cost(steps: list[StepRecord]) -> StepCost | None:
    """Non-negative least squares; None if the steps are too few or too alike."""
    if len(steps) < ENOUGH_STEPS:
        return None
    import numpy as np  # 10 MB of a server that may never need it

    seen = np.array([(1, *decode_rows_and_prompt_tokens(step)) for step in steps], np.float64)
    took = np.array([step.settled_us for step in steps], np.float64)
    # Leave out steps that were delayed by something else, such as another process.
    calm = took <= 4 * np.median(took / (1 + seen[:, 2])) * (1 + seen[:, 2])
    seen, took = seen[calm], took[calm]
    active = [column for column in range(3) if seen[:, column].any()]
    while active:
        found = np.linalg.lstsq(seen[:, active], took, rcond=None)[0]
        if (found >= 0).all():
            costs = dict(zip(active, found.tolist(), strict=True))
            return StepCost(*(round(costs.get(column, 0.0), 2) for column in range(3)))
        active.pop(int(found.argmin()))
    return None


def performance_figures(journal: Journal, source: Source | None = None) -> dict[str, Any]:
    steps = recent_steps(journal, source)
    cost = fit_step_cost(steps)
    batches: dict[int, list[int]] = defaultdict(list)
    prefill_tokens, prefill_us = 0, 0
    for step in steps:
        decodes, tokens = decode_rows_and_prompt_tokens(step)
        if not tokens:
            batches[decodes].append(step.settled_us)
        elif not decodes:
            prefill_tokens += tokens
            prefill_us += step.settled_us
    by_batch = [
        {
            "batch": batch,
            "steps": len(took),
            "step_us_p50": round(median(took)),
            "tokens_per_s": round(batch * 1e6 / max(median(took), 1), 1),
        }
        for batch, took in sorted(batches.items())
    ]
    alone = next((entry["tokens_per_s"] for entry in by_batch if entry["batch"] == 1), None)
    first = sorted(seconds for _, seconds in list(journal.first_tokens))  # copied: this may be another thread
    return {
        "prefill_tokens_per_s": round(prefill_tokens * 1e6 / prefill_us, 1) if prefill_us else None,
        "decode_tokens_per_s": alone,
        "decode_by_batch": by_batch,
        "tokens_per_s_peak": max((entry["tokens_per_s"] for entry in by_batch), default=None),
        "ttft_us_p50": percentile_us(first, 0.5),
        "ttft_us_p95": percentile_us(first, 0.95),
        "step_cost": None if cost is None else cost._asdict(),
        "steps": len(steps),
    }


def percentile(ordered: list[float], share: float) -> float | None:
    """Nearest rank of values in ascending order; None if there are none."""
    if not ordered:
        return None
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


def percentile_us(ordered: list[float], share: float) -> int | None:
    found = percentile(ordered, share)
    return None if found is None else round(found * 1e6)
