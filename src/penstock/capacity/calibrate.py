"""Efficiencies from rates that were measured elsewhere: with them the planner expects what was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec

from penstock.capacity.load import Workload
from penstock.capacity.question import LEAST_SHARE, Question
from penstock.capacity.speed import Speed
from penstock.errors import InvalidRequest

HALVINGS = 50


def calibrated(asked: Question, speed: Speed, work: Workload) -> Question:
    """`asked` with the efficiencies of its measured rates. Decoding alone is bound by bandwidth, a prompt by
    arithmetic."""
    if (rate := asked.measured_tokens_per_s) is not None:

        def decode_s(share: float) -> float:
            return replace(speed, bandwidth_efficiency=share).step(1, work.context).seconds

        share = _share(decode_s, 1 / rate, "measured_tokens_per_s", 1)
        asked = msgspec.structs.replace(asked, bandwidth_efficiency=share)
        speed = replace(speed, bandwidth_efficiency=share)
    if (rate := asked.measured_prefill_tokens_per_s) is not None:
        computed = work.prompt_tokens - work.cached_tokens

        def prefill_s(share: float) -> float:
            return replace(speed, compute_efficiency=share).prefill(work.prompt_tokens, work.cached_tokens).seconds

        share = _share(prefill_s, computed / rate, "measured_prefill_tokens_per_s", computed)
        asked = msgspec.structs.replace(asked, compute_efficiency=share)
    return asked


def _share(seconds: Callable[[float], float], target_s: float, param: str, tokens: float) -> float:
    """The efficiency at which it takes `target_s`; `seconds` falls as the efficiency rises."""
    if seconds(1.0) > target_s * (1 + 1e-9):
        raise InvalidRequest(
            f"{param}: {tokens / target_s:.4g} tok/s is above what this hardware can do, {tokens / seconds(1.0):.4g}",
            param=param,
        )
    low, high = LEAST_SHARE, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if seconds(middle) > target_s else (low, middle)
    return high
