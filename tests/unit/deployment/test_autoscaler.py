"""Replicas that come and go with the load; their engines do what the test tells them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

from helpers.scripted_engine import ScriptedEngine, active, until
from penstock.deployment.autoscaler import RETRY_S, Autoscaler
from penstock.deployment.local_model import LocalModel
from penstock.deployment.protocol import Call, State
from penstock.deployment.replica import Replica
from penstock.deployment.replica_set import ReplicaSet
from penstock.deployment.scale_policy import ScaleLimits
from penstock.errors import OutOfMemory
from penstock.flow import Delta, FinishReason
from penstock.flow.identity import Source

LIMITS = ScaleLimits(1, 3, up_s=1.0, down_s=5.0)


class World:
    def __init__(self, make: Callable[[], ScriptedEngine] = ScriptedEngine) -> None:
        self.now = 0.0
        self.engines: list[ScriptedEngine] = []
        self.scalings: list[tuple[int, int]] = []
        self.make = make

        def spawned() -> ScriptedEngine:
            self.engines.append(self.make())
            self.engines[-1].facts = self.engines[-1].facts and {"kv_tokens": 1, "max_sequences": 2}
            return self.engines[-1]

        self.replicas = ReplicaSet(
            lambda number: Replica(spawned, Source("m", number)),
            limits=LIMITS,
            on_scaled=lambda before, after, _: self.scalings.append((before, after)),
        )
        model = SimpleNamespace(name="m", replicas=self.replicas, state=State.READY)
        self.scaler = Autoscaler(lambda: [cast(LocalModel, model)], clock=lambda: self.now)

    async def pass_time(self, seconds: float) -> None:
        until_then = self.now + seconds
        while self.now < until_then:
            self.now += 0.5
            await self.scaler.look()

    def names(self) -> list[str]:
        return [one.name for one in self.replicas.replicas if one.state is State.READY]

    def tell(self, story: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        async def told() -> None:
            self.replicas.spawn()
            try:
                async with asyncio.timeout(30):
                    await self.replicas.start()
                    self.replicas.supervise(1000.0)
                    await story(self)
            finally:
                self.replicas.close()

        asyncio.run(told())


def end(engine: ScriptedEngine, *names: str) -> None:
    engine.say(*(Delta(id=f"{name}/0", tokens=[6], finish=FinishReason.END) for name in names))


def test_replicas_follow_the_load_and_no_request_is_lost() -> None:
    async def story(world: World) -> None:
        tickets = {name: world.replicas.submit(Call([], [active(name)])) for name in "abcd"}  # two replicas' worth
        await world.pass_time(2)
        await until(lambda: world.names() == ["m/0", "m/1"])
        tickets["e"] = world.replicas.submit(Call([], [active("e")]))
        assert world.engines[1].submitted == ["e/0"]  # the new one has less to do
        end(world.engines[0], *"abcd")
        await until(lambda: world.replicas.open == 1)
        await world.pass_time(6)  # m/0 has less to do, so it goes
        await until(lambda: world.names() == ["m/1"])
        await until(lambda: world.engines[0].closed)
        end(world.engines[1], "e")
        for ticket in tickets.values():
            await ticket.finished()
            assert ticket.error is None
        assert world.scalings == [(1, 2), (2, 1)]

    World().tell(story)


def test_one_that_drains_takes_nothing_new_and_finishes_what_it_has() -> None:
    async def story(world: World) -> None:
        world.replicas.scale(2, "test")
        await until(lambda: len(world.names()) == 2)
        first, second = world.replicas.replicas
        a, b = (one.submit(Call([], [active(name)])) for one, name in ((first, "a"), (second, "b")))
        world.replicas.scale(1, "test")
        assert (first.state, second.state) == (State.READY, State.DRAINING)
        c = world.replicas.submit(Call([], [active("c")]))
        assert c.deployment is first
        await asyncio.sleep(0)
        assert not world.engines[1].closed
        end(world.engines[1], "b")
        await b.finished()
        await until(lambda: world.engines[1].closed)
        end(world.engines[0], "a", "c")
        for ticket in (a, b, c):
            await ticket.finished()
            assert ticket.error is None

    World().tell(story)


def test_another_takes_over_from_one_that_dies_while_it_drains() -> None:
    async def story(world: World) -> None:
        world.replicas.scale(2, "test")
        await until(lambda: len(world.names()) == 2)
        first, second = world.replicas.replicas
        for name in "xy":
            first.submit(Call([], [active(name)]))
        ticket = second.submit(Call([], [active("a")]))
        world.replicas.scale(1, "test")
        assert second.state is State.DRAINING
        world.engines[1].die()
        await until(lambda: world.engines[0].submitted == ["x/0", "y/0", "a/0"])
        end(world.engines[0], "a")
        await ticket.finished()
        assert ticket.error is None
        await until(lambda: len(world.replicas.replicas) == 1)

    World().tell(story)


def test_one_that_drains_comes_back_when_it_is_needed_again() -> None:
    async def story(world: World) -> None:
        world.replicas.scale(2, "test")
        await until(lambda: len(world.names()) == 2)
        ticket = world.replicas.replicas[1].submit(Call([], [active("a")]))
        for name in "xy":
            world.replicas.replicas[0].submit(Call([], [active(name)]))
        world.replicas.scale(1, "test")
        assert world.names() == ["m/0"]
        world.replicas.scale(2, "test")
        end(world.engines[1], "a")
        await ticket.finished()
        await asyncio.sleep(0.05)  # longer than a look of the drain that was called off
        assert world.names() == ["m/0", "m/1"]
        assert len(world.engines) == 2

    World().tell(story)


def test_a_replica_that_is_still_starting_goes_first() -> None:
    class Slow(ScriptedEngine):
        def __init__(self) -> None:
            super().__init__()
            self.facts = None

    async def story(world: World) -> None:
        world.make = Slow
        world.replicas.scale(2, "test")
        await asyncio.sleep(0)
        world.replicas.scale(1, "test")
        await until(lambda: world.engines[1].closed)
        assert world.names() == ["m/0"]
        assert world.replicas.count == 1

    World().tell(story)


def test_one_that_cannot_start_is_tried_again_later() -> None:
    class Broken(ScriptedEngine):
        def __init__(self) -> None:
            super().__init__()
            self.facts, self.failure = None, OutOfMemory("no memory")

    async def story(world: World) -> None:
        world.make = Broken
        for name in "abcd":
            world.replicas.submit(Call([], [active(name)]))
        await world.pass_time(2)
        await until(lambda: world.replicas.start_failures == 1)
        assert (world.replicas.count, world.names()) == (1, ["m/0"])
        await world.pass_time(RETRY_S - 3)
        assert len(world.engines) == 2
        world.make = ScriptedEngine
        await world.pass_time(6)
        await until(lambda: world.names() == ["m/0", "m/1"])
        assert world.scalings == [(1, 2), (2, 1), (1, 2)]

    World().tell(story)


def test_the_speed_of_prompts_is_learnt_while_some_wait() -> None:
    async def story(world: World) -> None:
        for name in "abcd":
            world.replicas.submit(Call([], [active(name)]))
        assert world.scaler.snapshot(cast(LocalModel, SimpleNamespace(name="m", replicas=world.replicas)))
        await world.pass_time(0.5)
        world.engines[0].say(Delta(id="a/0", tokens=[5]), Delta(id="b/0", tokens=[5]))  # prompts of one token each
        await until(lambda: world.replicas.replicas[0].answered_tokens == 2)
        await world.pass_time(0.5)
        model = cast(LocalModel, SimpleNamespace(name="m", replicas=world.replicas))
        assert world.scaler.snapshot(model).prompt_tokens_per_s == 4.0

    World().tell(story)


def test_unloading_ends_what_starts_and_what_drains() -> None:
    async def story(world: World) -> None:
        world.replicas.scale(2, "test")
        await until(lambda: len(world.names()) == 2)
        world.replicas.scale(3, "test")
        await world.replicas.unload()
        assert all(engine.closed for engine in world.engines)
        world.replicas.spawn()
        await world.replicas.start()
        assert world.names() == ["m/0"]

    World().tell(story)
