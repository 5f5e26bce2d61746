"""The figures of a load test: percentiles, rates, errors and goodput."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from penstock.cli.load_test.client import Outcome

PERCENTILES = (50, 90, 95, 99)


def percentile(values: Sequence[float], share: float) -> float:
    """Of sorted values, between the two nearest."""
    place = (len(values) - 1) * share / 100
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def distribution(values: Sequence[float]) -> dict[str, float] | None:
    """Mean, percentiles and maximum, in milliseconds."""
    if not values:
        return None
    ordered = sorted(value * 1000 for value in values)
    found = {"mean": sum(ordered) / len(ordered)}
    found |= {f"p{share}": percentile(ordered, share) for share in PERCENTILES}
    return found | {"max": ordered[-1]}


def samples(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    """Seconds, of answered requests: to the first token, per token, between pieces, in all."""
    answered = [one for one in outcomes if one.error is None]
    return {
        "ttft": [one.ttft_s for one in answered if one.ttft_s is not None],
        "tpot": [one.tpot_s for one in answered if one.tpot_s is not None],
        "itl": [after - before for one in answered for before, after in pairwise(one.pieces_s)],
        "e2e": [one.e2e_s for one in answered],
    }


def summary(outcomes: Sequence[Outcome], seconds: float, targets: dict[str, float]) -> dict[str, Any]:
    """`targets`: milliseconds for ttft, tpot and e2e that a good request keeps, all of them."""
    answered = [one for one in outcomes if one.error is None]
    good = [one for one in answered if _keeps(one, targets)]
    seconds = max(seconds, 1e-9)
    late = [one.sent_s - one.planned_s for one in outcomes]
    return {
        "seconds": seconds,
        "requests": len(outcomes),
        "answered": len(answered),
        "errors": dict(Counter(one.error for one in outcomes if one.error is not None)),
        "input_tokens": sum(one.input_tokens for one in answered),
        "output_tokens": sum(one.output_tokens for one in answered),
        "requests_per_s": len(answered) / seconds,
        "output_tokens_per_s": sum(one.output_tokens for one in answered) / seconds,
        "total_tokens_per_s": sum(one.input_tokens + one.output_tokens for one in answered) / seconds,
        "latencies_ms": {name: distribution(values) for name, values in samples(outcomes).items()},
        "targets_ms": targets,
        "goodput_requests_per_s": len(good) / seconds if targets else None,
        "good_share": len(good) / len(outcomes) if targets and outcomes else None,
        "sent_late_ms_max": max(late, default=0.0) * 1000,  # a busy client: its figures are not the server's
    }


def _keeps(one: Outcome, targets: dict[str, float]) -> bool:
    found = {"ttft": one.ttft_s, "tpot": one.tpot_s, "e2e": one.e2e_s}
    return all((found[name] or 0.0) * 1000 <= limit for name, limit in targets.items())


def over_time(outcomes: Sequence[Outcome], seconds: float, points: int) -> list[float]:
    """Output pieces per second, in `points` equal parts of the test."""
    width = max(seconds, 1e-9) / points
    counts = [0] * points
    for one in outcomes:
        for when in one.pieces_s:
            counts[min(points - 1, int(when / width))] += 1
    return [count / width for count in counts]


def histogram(values: Sequence[float], bins: int) -> tuple[list[float], list[int]]:
    """The edges of `bins` equal parts up to the 99th percentile, and how many values are in each; larger ones are in
    the last."""
    ordered = sorted(values)
    low, high = ordered[0], percentile(ordered, 99)
    width = (high - low) / bins or 1e-9
    counts = [0] * bins
    for value in ordered:
        counts[min(bins - 1, int((value - low) / width))] += 1
    return [low + width * place for place in range(bins + 1)], counts
