from __future__ import annotations

import pytest

from penstock.errors import InvalidSetting
from penstock.flow import SamplingParams, Submit
from penstock.schedule.pace import Pace
from penstock.schedule.queue_policy import PolicyOptions, policy_by_name
from simulation.world import World


def order(policy: str) -> list[str]:
    """In which order one slot is given to requests of different priority and arrival."""
    world = World(policy=policy, max_sequences=1)
    for priority, arrival in [(1, 5.0), (0, 6.0), (1, 3.0), (0, 6.0)]:
        world.now = arrival
        world.submit([1, 2, 3], priority=priority, max_output=2)
    return ends(world)


def ends(world: World) -> list[str]:
    """In which order its requests end."""
    ended: list[str] = []
    while world.scheduler.has_work:
        world.step()
        ended += [id for id, client in world.clients.items() if client.end and id not in ended]
    return ended


def test_first_come_goes_by_arrival() -> None:
    assert order("fcfs") == ["r2", "r0", "r1", "r3"]


def test_priority_goes_before_arrival() -> None:
    assert order("priority") == ["r1", "r3", "r2", "r0"]


def test_a_long_wait_outweighs_a_priority() -> None:
    world = World(policy="priority", max_sequences=1, options=PolicyOptions(ageing_s=21.0))  # a step of priority: 1 s
    world.submit([1, 2, 3], priority=2, max_output=2)
    world.now = 1.5
    world.submit([1, 2, 4], priority=0, max_output=2)
    world.now = 2.5
    world.submit([1, 2, 5], priority=0, max_output=2)
    assert ends(world) == ["r1", "r0", "r2"]


def test_deadline_goes_by_the_targets_of_tiers_and_the_timeouts_of_requests() -> None:
    world = World(policy="deadline", max_sequences=1, options=PolicyOptions(ttft_targets_s=(1.0, 5.0, 60.0)))
    world.submit([1, 2, 3], tier=2, max_output=2)
    world.submit([1, 2, 4], tier=1, max_output=2)
    world.submit([1, 2, 5], tier=2, timeout_s=3.0, max_output=2)
    world.submit([1, 2, 6], tier=0, max_output=2)
    world.now = 2.0
    world.submit([1, 2, 6], tier=0, max_output=2)
    assert ends(world) == ["r3", "r2", "r4", "r1", "r0"]


def test_deadline_counts_the_time_that_a_request_will_take() -> None:
    pace = Pace()
    rank = policy_by_name("deadline", PolicyOptions(ttft_targets_s=(5.0,)), pace)
    pace.add_step(0.0, 1.0, [90, 10])
    pace.add_output(20)

    def latest(tokens: int, **options: float) -> float:
        return rank(Submit("x", [1] * tokens, SamplingParams(), 0, max_output=50, **options))[1]  # type: ignore[arg-type]

    assert latest(100) == pytest.approx(5.0 - 1.0)
    assert latest(100, arrival=7.0) == pytest.approx(7.0 + 5.0 - 1.0)
    assert latest(100, deadline_s=22.0) == pytest.approx(22.0 - 1.0 - 20 * 1.0)


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(InvalidSetting, match="unknown policy 'lifo'; there are fair, fcfs, priority, deadline"):
        World(policy="lifo")
