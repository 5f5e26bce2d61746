"""Queue policies: the order in which sequences get slots, KV blocks and the token budget of a step. Background
sequences come last under every policy.

fair      the default: tiers; within a tier tenants by virtual token counters (`tenant_shares`); within a tenant by
          priority. With one tenant it is first come, first served
fcfs      first come, first served
priority  tiers, and within a tier the priority that the client sent
deadline  least slack first: by the latest time at which work can begin and still meet the latency target

Nothing starves: a priority or tier is worth some seconds of waiting (`ageing_s`). Under `fair` tiers age in
`SequenceQueues`, where a tenant's turn is decided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from penstock.errors import InvalidSetting
from penstock.flow import Submit
from penstock.schedule.pace import Pace

MAX_PRIORITY = 10  # of a client's priority, either way: it never outweighs a tier
AGEING_S = 120.0
TTFT_TARGETS_S = (1.0, 5.0, 60.0)  # by tier; the last one for all further tiers


class SchedulerPolicy(Protocol):
    """Ranks a sequence when it is submitted. Smaller goes first; equal ranks go in the order of submission."""

    def __call__(self, message: Submit, /) -> tuple[float, ...]: ...


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    ageing_s: float = AGEING_S  # seconds of waiting that are worth one tier
    ttft_targets_s: tuple[float, ...] = TTFT_TARGETS_S


DEFAULT_OPTIONS = PolicyOptions()


def first_come(message: Submit) -> tuple[float, ...]:
    return (message.background, message.arrival)


def _fair(options: PolicyOptions, pace: Pace) -> SchedulerPolicy:
    """The order within a share."""

    def rank(message: Submit) -> tuple[float, ...]:
        return (clamped_priority(message) + message.arrival / options.ageing_s, message.arrival)

    return rank


def _priority(options: PolicyOptions, pace: Pace) -> SchedulerPolicy:
    def rank(message: Submit) -> tuple[float, ...]:
        level = message.tier + clamped_priority(message) + message.arrival / options.ageing_s
        return (message.background, level, message.arrival)

    return rank


def _deadline(options: PolicyOptions, pace: Pace) -> SchedulerPolicy:
    targets = options.ttft_targets_s

    def rank(message: Submit) -> tuple[float, ...]:
        prefill_s = pace.prefill_s(len(message.tokens))
        latest = message.arrival + targets[min(message.tier, len(targets) - 1)] - prefill_s
        if message.deadline_s is not None:
            output_s = pace.output_s(message.max_output)
            latest = min(latest, message.arrival + message.deadline_s - prefill_s - output_s)
        return (message.background, latest, message.arrival)

    return rank


def clamped_priority(message: Submit) -> float:
    """In tiers: between -0.5 and 0.5, so that the best priority of a tier comes behind the worst of the tier above."""
    return max(-MAX_PRIORITY, min(message.priority, MAX_PRIORITY)) / (2 * MAX_PRIORITY + 1)


POLICIES: dict[str, Callable[[PolicyOptions, Pace], SchedulerPolicy]] = {
    "fair": _fair,
    "fcfs": lambda options, pace: first_come,
    "priority": _priority,
    "deadline": _deadline,
}


def policy_by_name(name: str, options: PolicyOptions, pace: Pace) -> SchedulerPolicy:
    if name not in POLICIES:
        raise InvalidSetting(f"unknown policy {name!r}; there are {', '.join(POLICIES)}", param="policy")
    return POLICIES[name](options, pace)
