"""Tenants share the engine: shares by weight, latency beside a flood, tiers, ageing, preemption, waiting bounds."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from penstock.errors import QueueFull
from penstock.flow import record
from penstock.schedule.fair_preemption import MAX_YIELDS
from penstock.schedule.queue_policy import PolicyOptions
from simulation.device import VOCABULARY
from simulation.engine_time import TimedWorld
from simulation.world import World

DEPTHS = pytest.mark.parametrize("lookahead", [0, 1])


def prompt(length: int, seed: int) -> list[int]:
    random = Random(seed)
    return [random.randrange(VOCABULARY) for _ in range(length)]


def plans(policy: str, lookahead: int, seed: int) -> list[object]:
    """The plans of a crowded run of one tenant, with background sequences, cancels and timeouts."""
    random = Random(seed)
    world = World(
        policy=policy, lookahead=lookahead, context=40, spare_blocks=random.choice([1, 4, 30]), step_tokens=13,
        max_sequences=random.choice([3, 6]), windows=random.choice([(0,), (0, 6)]),
    )  # fmt: skip
    found = []
    for index in range(150):
        if random.random() < 0.3:
            world.submit(
                prompt(random.choice([3, 9, 20]), random.randrange(4)), max_output=random.choice([1, 8, 20]),
                tenant="one", background=random.random() < 0.3, seed=index,
                timeout_s=random.choice([None, None, 4.0]),
            )  # fmt: skip
        if random.random() < 0.03 and world.clients:
            world.cancel(random.choice(list(world.clients)))
        world.now += 0.1
        world.half_step()
        found += [(plan.number, plan.admits, plan.extends, plan.rows) for plan in world.plans]
    world.run()
    world.check_over()
    return found


@DEPTHS
@pytest.mark.parametrize("seed", range(4))
def test_one_tenant_gets_the_plans_of_first_come_first_served(lookahead: int, seed: int) -> None:
    assert plans("fair", lookahead, seed) == plans("fcfs", lookahead, seed)


# --- shares


@DEPTHS
@pytest.mark.parametrize("weights", [{"a": 1.0, "b": 1.0}, {"a": 3.0, "b": 1.0}, {"a": 1.0, "b": 2.0, "c": 4.0}])
def test_shares_of_backlogged_tenants_follow_their_weights(lookahead: int, weights: dict[str, float]) -> None:
    """However differently their requests look."""
    world = TimedWorld(lookahead=lookahead, max_sequences=8, step_tokens=64)
    shapes = {"a": (6, 20), "b": (40, 4), "c": (12, 12)}
    for number in range(220):
        for tenant, weight in weights.items():
            length, output = shapes[tenant]
            world.submit(prompt(length, number), tenant=tenant, weight=weight, max_output=output)
    world.run_steps(60)  # the first to come has filled all slots
    before = world.served()
    world.run_steps(250)
    assert all(world.waiting(tenant) for tenant in weights), "somebody has nothing left to do"
    served = world.served() - before
    unit = sum(served.values()) / sum(weights.values())
    for tenant, weight in weights.items():
        assert served[tenant] == pytest.approx(unit * weight, rel=0.1)


def test_idle_time_earns_no_credit() -> None:
    world = TimedWorld(max_sequences=4)
    for number in range(200):
        world.submit(prompt(6, number), tenant="busy", max_output=10)
    world.run_steps(300)
    for number in range(100):
        world.submit(prompt(6, number), tenant="back", max_output=10)
    before = world.served()
    world.run_steps(200)
    served = world.served() - before
    assert served["busy"] == pytest.approx(served["back"], rel=0.1)


# --- a flood


def first_token_times(lookahead: int, *, flood: bool, flood_prompt: int, own_prompt: int) -> tuple[list[float], float]:
    """Of one request per second: the times to the first token, and the longest step."""
    world = TimedWorld(lookahead=lookahead, max_sequences=16, step_tokens=64, context=160)
    if flood:
        for number in range(200):
            world.submit(prompt(flood_prompt, number), tenant="flood", max_output=140 - flood_prompt)
        world.run_steps(20)
    names = []
    for second in range(15):
        names.append(world.submit(prompt(own_prompt, 1000 + second), tenant="light", max_output=4))
        world.run_until(world.now + 1.0)
    if flood:
        assert world.waiting("flood"), "the flood has ended too soon"
    return [world.first_token_s(name) for name in names], max(world.step_times)


@DEPTHS
@pytest.mark.parametrize(("flood_prompt", "own_prompt"), [(12, 12), (90, 12), (90, 100)])
def test_a_flood_delays_another_tenant_by_a_few_steps(lookahead: int, flood_prompt: int, own_prompt: int) -> None:
    """p95 of the time to the first token ≤ 2 x alone + (2 + look-ahead) flooded steps."""
    shapes = {"flood_prompt": flood_prompt, "own_prompt": own_prompt}
    alone, _ = first_token_times(lookahead, flood=False, **shapes)
    beside, step_s = first_token_times(lookahead, flood=True, **shapes)
    p95_alone, p95 = (sorted(times)[int(0.95 * len(times))] for times in (alone, beside))
    assert p95 <= 2 * p95_alone + (2 + lookahead) * step_s


@DEPTHS
def test_preemption_for_a_tenant_has_a_cause_of_its_own_and_is_bounded(lookahead: int) -> None:
    world = TimedWorld(lookahead=lookahead, max_sequences=4)
    for number in range(30):
        world.submit(prompt(6, number), tenant="flood", max_output=40)
    world.run_steps(5)
    for number in range(60):
        world.submit(prompt(6, number), tenant="light", max_output=2)
        world.run_steps(6)
    world.run()
    world.check_over()
    yields = Counter(entry.number for entry in world.preempted if entry.why == record.SHARE)
    assert yields
    assert max(yields.values()) <= MAX_YIELDS
    tenants = {world.clients[f"r{number - 1}"].message.tenant for number in yields}
    assert tenants == {"flood"}
    assert all(entry.why == record.SHARE for entry in world.preempted), "there were blocks for all"


def test_tenants_with_equal_shares_do_not_take_each_others_slots() -> None:
    world = TimedWorld(max_sequences=4)
    for number in range(40):
        for tenant in ("a", "b"):
            world.submit(prompt(6, number), tenant=tenant, max_output=10)
    world.run()
    assert len(world.preempted) <= 1  # the first two of `b` find four of `a`


def test_blocks_go_to_the_tenant_that_holds_few_of_them() -> None:
    world = TimedWorld(max_sequences=8, context=64, spare_blocks=2)
    for number in range(6):
        world.submit(prompt(20, number), tenant="flood", max_output=40)
    world.run_steps(10)
    name = world.submit(prompt(20, 9), tenant="light", max_output=2)
    world.run_steps(8)
    assert world.clients[name].tokens
    assert any(entry.why == record.SHARE for entry in world.preempted)
    world.run()
    world.check_over()


# --- tiers


def finish_order(world: World) -> list[str]:
    ended: list[str] = []
    while world.scheduler.has_work:
        world.now += 0.1
        world.step()
        ended += [id for id, client in world.clients.items() if client.end and id not in ended]
    return [world.clients[id].message.tenant for id in ended]


def test_a_better_tier_goes_first() -> None:
    world = World(max_sequences=1)
    for tenant, tier in (("bulk", 2), ("standard", 1), ("interactive", 0), ("standard", 1)):
        world.submit(prompt(4, tier), tenant=tenant, tier=tier, max_output=3)
    assert finish_order(world) == ["interactive", "standard", "standard", "bulk"]


def test_a_better_tier_takes_the_slot_of_a_worse_one() -> None:
    world = World(max_sequences=1)
    world.submit(prompt(4, 0), tenant="bulk", tier=2, max_output=20)
    world.step()
    world.submit(prompt(4, 1), tenant="interactive", tier=0, max_output=3)
    assert finish_order(world) == ["interactive", "bulk"]


def test_a_worse_tier_is_not_starved() -> None:
    """Without ageing it would come last."""
    world = World(max_sequences=1, options=PolicyOptions(ageing_s=2.0))
    world.submit(prompt(4, 0), tenant="bulk", tier=2, max_output=3)
    for number in range(60):
        world.submit(prompt(4, number), tenant="interactive", tier=0, max_output=3)
    order = finish_order(world)
    assert 4 < order.index("bulk") < 30


def test_ageing_lets_one_sequence_of_a_tenant_up_at_a_time() -> None:
    world = World(max_sequences=1, options=PolicyOptions(ageing_s=1.0))
    for number in range(20):
        world.submit(prompt(4, number), tenant="bulk", tier=2, max_output=3)
        world.submit(prompt(4, number), tenant="interactive", tier=0, max_output=3)
    world.now += 100.0
    world.step()
    shares = Counter(sequence.share.tier for sequence in world.scheduler._queues.sequences.values())
    assert shares[2] == 19


@pytest.mark.parametrize("policy", ["fair", "priority"])
def test_a_priority_never_outweighs_a_tier(policy: str) -> None:
    world = World(max_sequences=1, policy=policy)
    world.submit(prompt(4, 0), tenant="a", tier=1, priority=-(10**9), max_output=2)
    world.submit(prompt(4, 1), tenant="b", tier=0, priority=10**9, max_output=2)
    assert finish_order(world) == ["b", "a"]


def test_a_priority_orders_the_requests_of_its_tenant_only() -> None:
    world = World(max_sequences=1)
    for number, (tenant, priority) in enumerate([("a", 0), ("b", 0), ("b", -5), ("b", -9)]):
        world.submit(prompt(4, number), tenant=tenant, priority=priority, max_output=2)
    ended: list[str] = []
    while world.scheduler.has_work:
        world.step()
        ended += [id for id, client in world.clients.items() if client.end and id not in ended]
    assert ended == ["r3", "r0", "r2", "r1"]


# --- waiting bounds


def test_a_full_queue_is_full_for_the_tenant_that_fills_it() -> None:
    world = World(max_waiting=8, max_sequences=1)
    world.submit(prompt(4, 0), tenant="flood")
    world.step()
    for number in range(8):
        world.submit(prompt(4, number), tenant="flood")
    with pytest.raises(QueueFull, match="8 sequences are waiting already"):
        world.submit(prompt(4, 0), tenant="flood")
    for number in range(4):
        world.submit(prompt(4, number), tenant="light")
    with pytest.raises(QueueFull, match="4 of them of this tenant"):
        world.submit(prompt(4, 0), tenant="light")
    world.run()
    world.check_over()


def test_the_queue_has_a_bound_whatever_the_number_of_tenants() -> None:
    world = World(max_waiting=4, max_sequences=1)
    refused = 0
    for number in range(50):
        try:
            world.submit(prompt(4, number), tenant=f"t{number}")
        except QueueFull:
            refused += 1
    assert refused == 50 - 9  # twice the bound, and one that does not wait


def test_each_tenant_may_have_a_bound_of_its_own() -> None:
    world = World(max_waiting=100, max_waiting_per_tenant=2, max_sequences=1)
    world.submit(prompt(4, 0), tenant="a")
    world.step()
    for number in range(2):
        world.submit(prompt(4, number), tenant="a")
    with pytest.raises(QueueFull, match=r"2 sequences of this tenant are waiting already.*max_waiting_per_tenant"):
        world.submit(prompt(4, 0), tenant="a")
    world.submit(prompt(4, 0), tenant="b")
    world.run()
    world.check_over()
