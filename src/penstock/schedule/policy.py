"""In which order sequences get what is scarce: slots, blocks, tokens of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from penstock.errors import InvalidSetting
from penstock.flow import Submit


class Policy(Protocol):
    """Ranks a sequence when it comes in. Smaller goes first; equal ranks go in the order they came in."""

    def __call__(self, message: Submit, /) -> tuple[float, ...]: ...


def first_come(message: Submit) -> tuple[float, ...]:
    return (message.arrival,)


def priority(message: Submit) -> tuple[float, ...]:
    return (message.priority, message.arrival)


POLICIES: Mapping[str, Policy] = {"fcfs": first_come, "priority": priority}


def named(name: str) -> Policy:
    if name not in POLICIES:
        raise InvalidSetting(f"unknown policy {name!r}; there are {', '.join(POLICIES)}", param="policy")
    return POLICIES[name]
