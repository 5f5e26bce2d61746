"""Who runs while adapters are loaded: those whose adapters are in memory, but not forever."""

from __future__ import annotations

from random import Random

from penstock.flow import record
from penstock.schedule.adapter_line import MAX_OVERTAKES
from simulation.world import World


def test_a_rare_adapter_runs_beside_popular_ones() -> None:
    """Two of them keep all the room, with another request of each always there."""
    world = World(adapter_room=2, max_sequences=16, max_waiting=100_000)
    rare, others = "", 0
    while not rare or world.clients[rare].end is None:
        while world.scheduler.stats()["waiting"] < 20:
            world.submit([1, 2, 3, others % 7], adapter=("hot", "warm")[others % 2], max_output=3 + others % 5)
            others += 1
        world.step()
        if others > 60 and not rare:
            rare, others = world.submit([4, 5], adapter="rare", max_output=2), 0
        assert others < 4 * MAX_OVERTAKES, "it starves"
    assert others > MAX_OVERTAKES / 2, "adapters in memory are not preferred"
    world.run()
    world.check_over()


def test_others_go_on_while_an_adapter_is_loaded() -> None:
    world = World(adapter_room=4, max_sequences=4)
    first = world.submit([1, 2, 3], adapter="a", max_output=3)
    plain = world.submit([1, 2, 3], max_output=3)
    world.half_step()
    assert [one.id for one in world.scheduler._queues.running] == [plain]
    world.run()
    world.check_over()
    entry = world.admissions[1][0]
    assert entry.waits_us[record.ADAPTER] >= 0
    assert world.clients[first].tokens != world.clients[plain].tokens


def test_everybody_ends_with_more_adapters_than_room() -> None:
    """At random, in all orders of arrival: storms are in `test_properties`, with few adapters."""
    for seed in range(10):
        random = Random(seed)
        world = World(
            adapter_room=random.choice((1, 3)), adapter_delays=random, max_sequences=random.choice((1, 4, 8)),
            policy=random.choice(("fair", "fcfs", "priority", "deadline")),
        )  # fmt: skip
        for _ in range(80):
            name = f"{random.choice(('a', 'b', 'bad'))}{random.randrange(12)}"
            tenant, prompt = random.choice(("", "x", "y")), [random.randrange(7)] * 5
            world.submit(
                prompt, adapter=name, tenant=tenant, background=random.random() < 0.3, max_output=random.randrange(1, 9)
            )
            if random.random() < 0.3:
                world.step()
        world.run()
        world.check_over()
