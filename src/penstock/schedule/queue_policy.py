"""Queue policies: the order in which sequences get slots, KV blocks and the token budget of a step. Background
sequences come last under every policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from penstock.errors import InvalidSetting
from penstock.flow import Submit


class SchedulerPolicy(Protocol):
    """Ranks a sequence when it is submitted. Smaller goes first; equal ranks go in the order of submission."""

    def __call__(self, message: Submit, /) -> tuple[float, ...]: ...


def first_come(message: Submit) -> tuple[float, ...]:
    return (message.background, message.arrival)


def priority(message: Submit) -> tuple[float, ...]:
    return (message.background, message.priority, message.arrival)


POLICIES: Mapping[str, SchedulerPolicy] = {"fcfs": first_come, "priority": priority}


def policy_by_name(name: str) -> SchedulerPolicy:
    if name not in POLICIES:
        raise InvalidSetting(f"unknown policy {name!r}; there are {', '.join(POLICIES)}", param="policy")
    return POLICIES[name]
