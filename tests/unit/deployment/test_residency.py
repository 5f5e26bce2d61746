"""Models that come and go, with replicas that are loaded in no time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from penstock.deployment.local_model import LocalModel
from penstock.deployment.protocol import State
from penstock.deployment.residency import Residency, Resident
from penstock.errors import InvalidRequest, ModelNotFound, OutOfMemory, ShuttingDown


class Replicas:
    """Loaded after two turns of the event loop."""

    def __init__(self) -> None:
        self.replicas: list[Any] = []
        self.open = 0
        self.loads = self.closed = 0
        self.scalings: list[tuple[int, int, str]] = []
        self.facts = {"device": "cpu"}
        self.failure: OutOfMemory | None = None  # of the next loads
        self.on_unload: Callable[[], None] = lambda: None

    state = State.READY

    def spawn(self) -> None:
        self.replicas = [_Replica()]

    async def sleep(self) -> None:
        assert self.open == 0, "requests are lost"
        self.state = State.ASLEEP
        self.replicas[0].ready = False

    async def wake(self) -> None:
        await asyncio.sleep(0)
        self.state = State.READY
        self.replicas[0].ready = True

    async def start(self) -> None:
        self.loads += 1
        await asyncio.sleep(0)
        if self.failure is not None:
            self.replicas = []
            raise self.failure
        self.replicas[0].ready = True

    def supervise(self, hang_s: float) -> None: ...

    def tell_scaled(self, before: int, after: int, reason: str) -> None:
        self.scalings.append((before, after, reason))

    async def unload(self) -> None:
        assert self.open == 0, "requests are lost"
        closing, self.replicas = self.replicas, []
        await asyncio.sleep(0)
        self.closed += len(closing)
        self.on_unload()


class _Replica:
    ready = False

    @property
    def state(self) -> State:
        return State.READY if self.ready else State.ASLEEP

    facts = {"weights_bytes": 3 << 30, "kv_bytes": 1 << 30}  # noqa: RUF012


class Model:
    def __init__(self, name: str) -> None:
        self.name, self.base, self.removed = name, self, False
        self.replicas = Replicas()
        self.ensure_loaded: Callable[[], Coroutine[Any, Any, None]]
        self.keep_alive: Callable[[float | None], None]
        self.end_waiting: Callable[[str], None]

    async def ask(self, turns: int = 1) -> None:
        """A request: it needs the model, and takes some turns of the loop."""
        await self.ensure_loaded()
        assert [replica.ready for replica in self.replicas.replicas] == [True], f"{self.name} is not there"
        self.replicas.open += 1
        for _ in range(turns):
            await asyncio.sleep(0)
        assert self.replicas.replicas, f"{self.name} went away under a request"
        self.replicas.open -= 1


class World:
    def __init__(self, names: str, **options: Any) -> None:
        self.now = 0.0
        self.free = 16 << 30
        self.frees = 0  # bytes, by each model that is unloaded
        self.residency = Residency(1.0, lambda: self.free, clock=lambda: self.now, **options)
        self.models = {name: Model(name) for name in names}

    def add(self, name: str, **options: Any) -> Model:
        self.residency.add(Resident(cast(LocalModel, self.models[name]), **options))
        self.models[name].replicas.on_unload = self._free_more
        return self.models[name]

    def _free_more(self) -> None:
        self.free += self.frees

    @property
    def loaded(self) -> str:
        return "".join(name for name, model in self.models.items() if model.replicas.replicas)


def local(model: Model) -> LocalModel:
    return cast(LocalModel, model)


def test_the_least_recently_used_makes_room() -> None:
    async def story() -> None:
        world = World("abc", max_loaded=2)
        for name in "abc":
            world.add(name)
        for name in "abac":
            world.now += 1
            await world.models[name].ask()
        assert world.loaded == "ac"

    asyncio.run(story())


def test_swapping_under_load_loses_nothing() -> None:
    async def story() -> None:
        world = World("abc", max_loaded=1)
        for name in "abc":
            world.add(name)
        await asyncio.gather(*(world.models[name].ask(turns=7) for name in "abcabbcca" * 5))
        assert all(model.replicas.open == 0 and model.replicas.loads >= 1 for model in world.models.values())
        assert len(world.loaded) == 1

    asyncio.run(story())


def test_idle_models_are_unloaded() -> None:
    async def story() -> None:
        world = World("ab")
        soon, never = world.add("a", keep_alive_s=10), world.add("b")
        await soon.ask()
        await never.ask()
        world.now = 9
        await world.residency.unload_idle()
        assert world.loaded == "ab"
        soon.replicas.open = 1  # a request under way
        world.now = 11
        await world.residency.unload_idle()
        soon.replicas.open = 0
        assert world.loaded == "ab"
        world.now = 20
        await world.residency.unload_idle()
        assert world.loaded == "ab"
        assert world.residency.expires_in(local(soon)) == 1
        world.now = 22
        await world.residency.unload_idle()
        assert world.loaded == "b"
        assert world.residency.expires_in(local(soon)) is None, "it is not there"
        never.keep_alive(0)
        await world.residency.unload_idle()
        assert world.loaded == ""

    asyncio.run(story())


def test_what_would_have_to_go_is_said() -> None:
    async def story() -> None:
        world = World("ab")
        pinned, large = world.add("a", pinned=True), world.add("b", needed_bytes=20 << 30)
        await pinned.ask()
        with pytest.raises(
            OutOfMemory, match=r"b cannot be loaded: it needs 20\.00 GiB, and 16\.00 GiB are free: "
        ) as no:
            await large.ask()
        assert "4.00 GiB would have to go; loaded and pinned are a 4.00 GiB" in no.value.message
        with pytest.raises(InvalidRequest, match="a is pinned"):
            await world.residency.unload(local(pinned))
        world.free = 24 << 30
        await large.ask()
        assert world.loaded == "ab"

    asyncio.run(story())


def test_a_request_wakes_a_model_that_sleeps() -> None:
    async def story() -> None:
        world = World("ab", max_loaded=1)
        first, second = world.add("a", pinned=True), world.add("b")
        await first.ask()
        asking = asyncio.create_task(first.ask(turns=9))
        await asyncio.sleep(0)
        await world.residency.sleep(local(first))  # after the request
        assert asking.done()
        assert first.replicas.state is State.ASLEEP
        await second.ask()  # there is room now
        assert world.loaded == "ab"
        await asyncio.gather(first.ask(), first.ask())
        assert first.replicas.loads == 1
        assert world.loaded == "a"

    asyncio.run(story())


def test_a_replica_that_sleeps_beside_one_that_is_awake_is_woken() -> None:
    async def story() -> None:
        world = World("a")
        model = world.add("a")
        await model.ask()
        dozing = _Replica()
        model.replicas.replicas.append(dozing)  # the other one died asleep, and has come back
        model.replicas.wake = lambda: wake(dozing)  # type: ignore[method-assign, assignment]
        await model.ensure_loaded()
        assert dozing.ready

    async def wake(replica: _Replica) -> None:
        replica.ready = True

    asyncio.run(story())


def test_gpu_memory_is_shared() -> None:
    async def story() -> None:
        world = World("abc")
        first, second = world.add("a", gpu_fractions={0: 0.6}), world.add("b", gpu_fractions={0: 0.6})
        third = world.add("c", gpu_fractions={1: 0.6})
        await first.ask()
        await second.ask()
        await third.ask()
        assert world.loaded == "bc"

    asyncio.run(story())


def test_a_model_that_comes_and_goes_tells_why() -> None:
    async def story() -> None:
        world = World("ab", max_loaded=1)
        world.add("a", keep_alive_s=10.0)
        world.add("b")
        await world.models["a"].ask()
        world.now += 11
        await world.residency.unload_idle()
        assert world.models["a"].replicas.scalings == [
            (0, 1, "a request or an operator needs it"),
            (1, 0, "idle for 10 s"),
        ]
        await world.models["b"].ask()
        await world.models["a"].ask()
        assert world.models["b"].replicas.scalings[-1] == (1, 0, "a needs its room")

    asyncio.run(story())


def test_a_request_cannot_unload_a_model_below_its_least_number_of_replicas() -> None:
    world = World("ab")
    kept, free = world.add("a", keeps_replicas=True), world.add("b")
    assert not hasattr(kept, "keep_alive")
    assert free.keep_alive is not None


def test_a_load_goes_on_when_its_client_disconnects() -> None:
    async def story() -> None:
        world = World("a")
        model = world.add("a")
        leaving, staying = asyncio.create_task(model.ask()), asyncio.create_task(model.ask())
        await asyncio.sleep(0)
        leaving.cancel()
        await staying
        await world.residency.unload(local(model))
        leaving = asyncio.create_task(model.ask())
        await asyncio.sleep(0)
        leaving.cancel()  # nobody waits for it any more
        await asyncio.wait([leaving])
        await model.ask()
        assert model.replicas.loads == 2

    asyncio.run(story())


def test_unloading_goes_on_when_the_client_who_needs_the_room_disconnects() -> None:
    async def story() -> None:
        world = World("ab", max_loaded=1)
        first, second = world.add("a"), world.add("b")
        await first.ask()
        leaving = asyncio.create_task(second.ask())
        while first.replicas.replicas:
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        await second.ask()
        assert world.loaded == "b"
        assert first.replicas.closed == 1, "its process has ended"

    asyncio.run(story())


def test_requests_that_wait_for_a_load_end_with_the_server() -> None:
    async def story() -> None:
        world = World("a")
        model = world.add("a")
        model.replicas.start = asyncio.Event().wait  # type: ignore[method-assign, assignment]
        asking = asyncio.create_task(model.ask())
        await asyncio.sleep(0)
        model.end_waiting("the server is shutting down")
        with pytest.raises(ShuttingDown, match="the server is shutting down"):
            await asking

    asyncio.run(story())


def test_what_keeps_a_model_from_being_loaded_is_told_to_all_who_wait_and_tried_once_for_them() -> None:
    async def story() -> None:
        world = World("a")
        model = world.add("a")
        model.replicas.failure = OutOfMemory("it does not fit", param="kv_memory")
        failed = await asyncio.gather(*(model.ask() for _ in range(3)), return_exceptions=True)
        assert [(type(one), str(one), getattr(one, "param", None)) for one in failed] == [
            (OutOfMemory, "it does not fit", "kv_memory")
        ] * 3
        assert len({id(one) for one in failed}) == 3, "each is changed on its way to the client"
        assert model.replicas.loads == 1
        model.replicas.failure = None
        await model.ask()

    asyncio.run(story())


def test_a_model_that_is_removed_is_not_loaded_again_by_those_who_wait_for_it() -> None:
    async def story() -> None:
        world = World("a")
        model = world.add("a")
        await model.ask()
        asking = asyncio.create_task(model.ask(turns=9))
        await asyncio.sleep(0)
        removing = asyncio.create_task(world.residency.remove(local(model)))
        await asyncio.sleep(0)
        with pytest.raises(ModelNotFound, match="the model 'a' has been removed"):
            await model.ask()  # it comes while the model finishes its requests
        await asyncio.gather(asking, removing)
        with pytest.raises(ModelNotFound):
            await model.ask()
        assert world.loaded == ""

    asyncio.run(story())


def test_a_model_that_cannot_fit_unloads_no_other() -> None:
    async def story() -> None:
        world = World("abcd")
        pinned, other = world.add("a", pinned=True), world.add("b")
        large, small = world.add("c", needed_bytes=21 << 30), world.add("d", needed_bytes=20 << 30)
        await pinned.ask()
        await other.ask()
        with pytest.raises(OutOfMemory, match=r"1\.00 GiB would have to go; loaded and pinned are a 4\.00 GiB") as no:
            await large.ask()
        assert "16.00 GiB are free, 4.00 GiB more without the models that are not pinned" in no.value.message
        assert world.loaded == "ab"
        world.frees = 4 << 30
        await small.ask()
        assert world.loaded == "ad"

    asyncio.run(story())
