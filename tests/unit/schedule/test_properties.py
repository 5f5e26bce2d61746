"""Random workloads over small pools: whatever happens, every request is answered as if it were alone, and exactly once.

Two kinds: a state machine, whose failures hypothesis shrinks to a few events, and storms, long crowded runs in which
preemption, eviction and sharing happen all the time. What is checked is in `simulation`: after every step the device's
memory and all bookkeeping, in the end every answer.

PENSTOCK_EXAMPLES multiplies the number of examples for a long run (with --timeout=0), which draws new ones each time.
"""

from __future__ import annotations

import os
from random import Random
from typing import Any

from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from penstock.errors import QueueFull
from penstock.flow import FinishReason
from penstock.schedule.queue_policy import PolicyOptions
from simulation.device import VOCABULARY
from simulation.world import Client, World

MULTIPLIER = int(os.environ.get("PENSTOCK_EXAMPLES", "1"))
COMMON = {
    "derandomize": MULTIPLIER == 1,
    "deadline": None,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}

MAX_WAITING = 12
FAMILIES = [[(7 * family + 3 * index * index) % VOCABULARY for index in range(40)] for family in range(3)]
WORLDS = {
    "windows": st.sampled_from([(0,), (0,), (5,), (0, 3), (0, 6), (0, 4, 9), (1,)]),
    "block_size": st.integers(1, 5),
    "spare_blocks": st.sampled_from([0, 1, 2, 4, 8, 16]),
    "context": st.integers(8, 40),
    "step_tokens": st.sampled_from([1, 2, 3, 5, 8, 13, 24]),
    "max_sequences": st.sampled_from([1, 2, 3, 4, 6]),
    "lookahead": st.sampled_from([0, 1]),
    "policy": st.sampled_from(["fair", "fair", "fair", "fcfs", "priority", "deadline"]),
    "options": st.builds(PolicyOptions, ageing_s=st.sampled_from([1.0, 120.0])),
    "prefix_caching": st.sampled_from([True, True, False]),
    "adapter_room": st.sampled_from([1, 2, 3]),
    "adapter_delays": st.integers(0, 3).map(Random),
    "drafts": st.sampled_from([None, 1, 2, 3]).map(lambda seed: None if seed is None else Random(seed)),
}
CROWDED = WORLDS | {
    "spare_blocks": st.integers(0, 8),
    "step_tokens": st.sampled_from([3, 5, 8, 13, 24]),
    "max_sequences": st.sampled_from([3, 4, 6, 8]),
}


def submit(world: World, prompt: list[int], **arguments: Any) -> None:
    most = world.context if arguments.get("embed") else world.context - 1
    try:
        world.submit(prompt[:most], **arguments)
    except QueueFull:
        assert world.scheduler.stats()["waiting"] >= MAX_WAITING  # a preemption may have put more there


def open_clients(world: World) -> list[Client]:
    return [client for client in world.clients.values() if client.end is None]


def cancel(world: World, client: Client, finish: FinishReason, behind: int | None) -> None:
    """`behind`: how many tokens fewer than it was sent the client wants to have been given."""
    world.cancel(client.message.id, finish, None if behind is None else max(0, len(client.tokens) - behind))


class Engine(RuleBasedStateMachine):
    world: World

    @initialize(arguments=st.fixed_dictionaries(WORLDS))
    def build(self, arguments: dict[str, Any]) -> None:
        self.world = World(max_waiting=MAX_WAITING, **arguments)

    @rule(
        family=st.integers(0, 2),
        shared=st.sampled_from([0, 0, 1, 3, 4, 6, 8, 12, 20, 36]),
        own=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=5),
        max_output=st.sampled_from([1, 2, 5, 9, 16, 30, 40]),
        end_tokens=st.sampled_from([(), (), (), (2,), (2, 4)]),
        stop_tokens=st.sampled_from([(), (), (), (4,), (1, 2)]),
        seed=st.integers(0, 2),
        salt=st.sampled_from(["", "", "salt"]),
        tenant=st.sampled_from(["", "", "other", "third"]),
        tier=st.sampled_from([1, 1, 1, 0, 2]),
        weight=st.sampled_from([1.0, 1.0, 0.5, 3.0]),
        priority=st.integers(0, 2),
        background=st.sampled_from([False, False, True]),
        timeout_s=st.sampled_from([None, None, None, 3.0, 10.0]),
        logprobs=st.sampled_from([None, None, 0]),
        prompt_logprobs=st.sampled_from([None, None, None, None, 0]),
        embed=st.sampled_from([None, None, None, None, "mean", "last"]),
        choices=st.sampled_from([1, 1, 1, 1, 2, 5]),
        speculation=st.sampled_from([True, True, True, False]),
        adapter=st.sampled_from([None, None, None, "a", "b", "c", "d", "bad"]),
    )
    def submit(self, family: int, shared: int, own: list[int], choices: int, seed: int, **others: Any) -> None:
        for choice in range(choices):
            submit(self.world, FAMILIES[family][:shared] + own, seed=seed + choice, **others)

    @precondition(lambda self: self.world.clients)
    @rule(which=st.integers(0, 1000), own=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=3))
    def follow_up(self, which: int, own: list[int]) -> None:
        """The next turn of a conversation: what was said before is in the prompt."""
        before = self._client(which)
        adapter = before.message.adapter
        whose = {"salt": before.message.salt, "tenant": before.message.tenant}
        whose |= {} if adapter is None else {"adapter": adapter.name}
        submit(self.world, before.message.tokens + before.tokens + own, **whose)

    @rule(count=st.integers(1, 12))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.world.step()

    @rule()
    def half_step(self) -> None:
        self.world.half_step()

    @rule(
        which=st.integers(0, 1000),
        finish=st.sampled_from([FinishReason.CANCELLED, FinishReason.STOP_STRING]),
        behind=st.sampled_from([None, 0, 1, 2, 5, 9]),
    )
    def cancel(self, which: int, finish: FinishReason, behind: int | None) -> None:
        clients = open_clients(self.world)
        if clients:
            cancel(self.world, clients[which % len(clients)], finish, behind)

    @precondition(lambda self: self.world.clients)
    @rule(which=st.integers(0, 1000))
    def cancel_too_late(self, which: int) -> None:
        client = self._client(which)
        if client.end is not None:
            self.world.cancel(client.message.id, at_output=0)

    @rule(seconds=st.sampled_from([0.5, 2.0, 5.0]))
    def tick(self, seconds: float) -> None:
        self.world.now += seconds

    @rule(unlikely=st.integers(0, 5))
    def fail(self, unlikely: int) -> None:
        if unlikely == 0:
            self.world.fail()

    def _client(self, which: int) -> Client:
        clients = list(self.world.clients.values())
        return clients[which % len(clients)]

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.run()
            self.world.check_over()


TestEngine = Engine.TestCase
TestEngine.settings = settings(max_examples=400 * MULTIPLIER, stateful_step_count=40, **COMMON)


# Here a foreground sequence waits for blocks while background ones need none.
BLOCKS_AWAITED = {
    "windows": (0,),
    "block_size": 1,
    "spare_blocks": 2,
    "context": 38,
    "step_tokens": 8,
    "max_sequences": 4,
    "lookahead": 1,
    "policy": "fair",
    "options": PolicyOptions(ageing_s=120.0),
    "prefix_caching": False,
    "adapter_room": 2,
    "adapter_delays": Random(1),
    "drafts": None,
}


@settings(max_examples=600 * MULTIPLIER, **COMMON)
@example(seed=8362, arguments=BLOCKS_AWAITED)
@given(seed=st.integers(0, 2**32), arguments=st.fixed_dictionaries(CROWDED))
def test_storm(seed: int, arguments: dict[str, Any]) -> None:
    note(f"{seed=} {arguments=}")
    random = Random(seed)
    world = World(max_waiting=MAX_WAITING, **arguments)
    busy = random.uniform(0.05, 0.3)  # how likely a request comes in at any time
    for _ in range(random.randrange(80, 300)):
        if random.random() < busy:
            for choice in range(random.choice([1, 1, 1, 3])):
                _submit_any(world, random, choice)
        if random.random() < 0.03 and (clients := open_clients(world)):
            client = max(clients, key=lambda client: (len(client.tokens), client.message.id))
            finish = random.choice([FinishReason.CANCELLED, FinishReason.STOP_STRING])
            cancel(world, client, finish, random.choice([None, 0, 1, 3, 8]))
        if random.random() < 0.004:
            world.fail()
        world.now += random.random() * 0.2
        world.half_step()
    world.run()
    world.check_over()


def _submit_any(world: World, random: Random, choice: int) -> None:
    before = random.choice([None, None, None, *world.clients.values()])
    if before is None or random.random() < 0.5:
        prompt, salt = random.choice(FAMILIES)[: random.choice([0, 2, 4, 7, 12])], random.choice(["", "", "salt"])
    else:
        prompt, salt = before.message.tokens + before.tokens, before.message.salt
        prompt = prompt[: random.choice([len(prompt), world.context // 2])]
    submit(
        world,
        [*prompt, random.randrange(VOCABULARY)],
        salt=salt,
        tenant=random.choice(["a", "a", "b", "c"]),
        tier=random.choice([1, 1, 1, 1, 0, 2]),
        weight=random.choice([1.0, 1.0, 4.0]),
        seed=choice if random.random() < 0.8 else 0,
        max_output=random.choice([1, 3, 8, 20, 40]),
        end_tokens=random.choice([(), (), (), (2,)]),
        stop_tokens=random.choice([(), (), (), (4,)]),
        priority=random.randrange(3),
        background=random.random() < 0.3,
        timeout_s=random.choice([None, None, None, 1.0, 8.0]),
        logprobs=random.choice([None, 0]),
        prompt_logprobs=random.choice([None, None, None, None, 0]),
        speculation=random.random() < 0.8,
        embed=random.choice([None, None, None, None, None, "mean", "last"]),
        adapter=random.choice([None, None, None, "a", "b", "c", "d", "e", "bad"]),
    )
