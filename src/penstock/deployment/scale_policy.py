"""How many replicas a model should have: a pure function over a snapshot of its load.

The *demand* of a model is the number of replicas that its load fills: the prompt tokens without output, divided by what
one replica computes within the TTFT target, or the open sequences, divided by what one replica runs at once, whichever
is more. Replicas are added when the demand has been above their number for `up_s`, and removed one by one when what
remains would have been filled to at most HEADROOM for `down_s`. Between the two bounds nothing changes. A missed SLO
adds one replica per window of the SLO: its figures are those of the whole window.
"""

from __future__ import annotations

import math

import msgspec

HEADROOM = 0.7  # of the replicas that remain, as far as the demand may fill them
DEFAULT_TTFT_S = 2.0  # the target where no SLO and no routing target says another
DEFAULT_PROMPT_TOKENS_PER_S = 2000.0  # until it has been measured


class ScaleLimits(msgspec.Struct, frozen=True):
    """Of one model. `least` 0: the last replica goes when the model has been idle (`deployment.residency`)."""

    least: int = 1
    most: int = 1
    up_s: float = 3.0
    down_s: float = 60.0


class LoadSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The load of one model at one moment."""

    now: float  # monotonic seconds
    replicas: int  # that take requests or start; not those that drain
    open: int = 0  # sequences that have not ended
    queued_tokens: int = 0  # prompt tokens of those without output
    slots: int = 1  # sequences that one replica runs at once
    prompt_tokens_per_s: float = DEFAULT_PROMPT_TOKENS_PER_S  # of one replica
    ttft_target_s: float = DEFAULT_TTFT_S
    missed_slo: str | None = None  # its name
    slo_window_s: float = 300.0


class ScaleState(msgspec.Struct, frozen=True):
    """What a decision needs to know of those before."""

    above_since: float | None = None  # the demand is above the number of replicas
    below_since: float | None = None  # fewer replicas would do
    changed: float = -math.inf  # the last decision


class ScaleDecision(msgspec.Struct, frozen=True):
    target: int  # replicas
    reason: str


def demand(snapshot: LoadSnapshot) -> float:
    """In replicas; not bounded by the limits of this server, so that several servers can be scaled by it."""
    by_tokens = snapshot.queued_tokens / (snapshot.prompt_tokens_per_s * snapshot.ttft_target_s)
    return max(by_tokens, snapshot.open / snapshot.slots)


def decide(limits: ScaleLimits, state: ScaleState, snapshot: LoadSnapshot) -> tuple[ScaleState, ScaleDecision | None]:
    """The next state, and a change if there is one. `limits.least` 0 counts as 1: see `ScaleLimits`."""
    now, replicas, wanted = snapshot.now, snapshot.replicas, demand(snapshot)
    least = max(limits.least, 1)
    if not least <= replicas <= limits.most:
        target = min(max(replicas, least), limits.most)
        return ScaleState(changed=now), ScaleDecision(target, f"the limits are {least} to {limits.most}")
    above = _since(state.above_since, now, holds=wanted > replicas)
    below = _since(state.below_since, now, holds=replicas > least and wanted <= HEADROOM * (replicas - 1))
    if snapshot.missed_slo is not None:
        below = None
        if snapshot.open and replicas < limits.most and now - state.changed >= snapshot.slo_window_s:
            return ScaleState(changed=now), ScaleDecision(replicas + 1, f"the SLO {snapshot.missed_slo} is missed")
    if above is not None and replicas < limits.most and now - above >= limits.up_s:
        target = min(math.ceil(wanted), limits.most)
        return ScaleState(changed=now), ScaleDecision(target, _reason(snapshot, wanted))
    if below is not None and now - below >= limits.down_s:
        return ScaleState(changed=now), ScaleDecision(replicas - 1, _reason(snapshot, wanted))
    return ScaleState(above, below, state.changed), None


def _since(before: float | None, now: float, *, holds: bool) -> float | None:
    if not holds:
        return None
    return now if before is None else before


def _reason(snapshot: LoadSnapshot, wanted: float) -> str:
    return (
        f"{snapshot.queued_tokens} prompt tokens wait and {snapshot.open} sequences are open: work for "
        f"{wanted:.2f} replicas"
    )
