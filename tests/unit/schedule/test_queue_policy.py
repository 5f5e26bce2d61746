from __future__ import annotations

import pytest

from penstock.errors import InvalidSetting
from simulation.world import World


def order(policy: str) -> list[str]:
    """In which order one slot is given to requests of different priority and arrival."""
    world = World(policy=policy, max_sequences=1)
    for priority, arrival in [(1, 5.0), (0, 6.0), (1, 3.0), (0, 6.0)]:
        world.now = arrival
        world.submit([1, 2, 3], priority=priority, max_output=2)
    ended: list[str] = []
    while world.scheduler.has_work:
        world.step()
        ended += [id for id, client in world.clients.items() if client.end and id not in ended]
    return ended


def test_first_come_goes_by_arrival() -> None:
    assert order("fcfs") == ["r2", "r0", "r1", "r3"]


def test_priority_goes_before_arrival() -> None:
    assert order("priority") == ["r1", "r3", "r2", "r0"]


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(InvalidSetting, match="unknown policy 'lifo'; there are fair, fcfs, priority, deadline"):
        World(policy="lifo")
