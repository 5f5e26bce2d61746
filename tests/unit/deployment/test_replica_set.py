"""Several replicas of a model, whose engines do what the test tells them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from helpers.scripted_engine import ScriptedEngine, active, until
from penstock.deployment import replica as module
from penstock.deployment.protocol import Call, State
from penstock.deployment.replica import Replica
from penstock.deployment.replica_set import ReplicaSet
from penstock.deployment.ticket import Ticket
from penstock.errors import EngineDied, OutOfMemory
from penstock.flow import Delta, FinishReason, Query, Reply
from penstock.flow.identity import Source


def run(
    story: Callable[[ReplicaSet, list[ScriptedEngine]], Coroutine[Any, Any, None]],
    make: Callable[[], ScriptedEngine] = ScriptedEngine,
) -> None:
    engines: list[ScriptedEngine] = []

    def spawned() -> ScriptedEngine:
        engines.append(make())
        return engines[-1]

    async def told() -> None:
        replicas = ReplicaSet(lambda number: Replica(spawned, Source("m", number)), 2)
        replicas.spawn()
        try:
            async with asyncio.timeout(30):
                await story(replicas, engines)
        finally:
            replicas.close()

    asyncio.run(told())


def test_requests_go_to_the_one_with_less_to_do() -> None:
    async def story(replicas: ReplicaSet, engines: list[ScriptedEngine]) -> None:
        await replicas.start()
        for name in "abcd":
            replicas.submit(Call([], [active(name)]))
        assert [engine.submitted for engine in engines] == [["a/0", "c/0"], ["b/0", "d/0"]]

    run(story)


def test_another_takes_over_what_nobody_has_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT_S", 30.0)  # the dead one does not come back in this story

    async def story(replicas: ReplicaSet, engines: list[ScriptedEngine]) -> None:
        await replicas.start()
        replicas.supervise(1000.0)
        first, second = replicas.replicas
        streamed = first.submit(Call([], [active("s")]))
        whole = first.submit(Call([], [active("w", choices=2)]))
        engines[0].say(Delta(id="s/0", tokens=[5]), Delta(id="w/0", tokens=[5]))
        await streamed.take()
        engines[0].die()
        await streamed.finished()
        assert isinstance(streamed.error, EngineDied)
        await until(lambda: engines[1].submitted == ["w/0", "w/1"])
        assert whole.deployment is second
        assert (replicas.state, first.state, first.open) == (State.READY, State.RESTARTING, 0)
        engines[1].say(*(Delta(id=f"w/{choice}", tokens=[6], finish=FinishReason.END) for choice in range(2)))
        await whole.finished()
        assert whole.error is None
        assert [choice.tokens for choice in whole.active_requests[0].choices] == [[6], [6]]

    run(story)


def test_a_request_with_another_model_to_go_to_does_not_wait_for_the_next_engine() -> None:
    class Chain:
        asked: BaseException | None = None

        async def recover(self, ticket: Ticket) -> bool:
            self.asked = ticket.error
            return False

        def close(self) -> None: ...

    async def story(replicas: ReplicaSet, engines: list[ScriptedEngine]) -> None:
        await replicas.start()
        engines[1].die()
        await until(lambda: replicas.replicas[1].state is State.RESTARTING)
        chain = Chain()
        ticket = replicas.submit(Call([], [active("a")]))
        ticket.recovery = chain
        engines[0].say(Delta(id="a/0", tokens=[5]))  # nobody has seen it
        engines[0].die()
        await ticket.finished()
        assert isinstance(chain.asked, EngineDied)

    run(story)


def test_the_first_to_come_back_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT_S", 0.0)

    async def story(replicas: ReplicaSet, engines: list[ScriptedEngine]) -> None:
        await replicas.start()
        ticket = replicas.replicas[0].submit(Call([], [active("a")]))
        engines[1].die()
        engines[0].die()
        await until(lambda: all(one.state is State.RESTARTING for one in replicas.replicas))
        with pytest.raises(EngineDied):
            replicas.submit(Call([], [active("b")]))
        supervising = asyncio.create_task(replicas.replicas[1].supervise(1000.0))
        await until(lambda: len(engines) == 3 and engines[2].submitted == ["a/0"])
        assert ticket.deployment is replicas.replicas[1]
        supervising.cancel()

    run(story)


def test_one_that_cannot_start_ends_them_all() -> None:
    class Broken(ScriptedEngine):
        def __init__(self) -> None:
            super().__init__()
            self.facts, self.failure = None, OutOfMemory("no memory")

    kinds = iter([ScriptedEngine, Broken])

    async def story(replicas: ReplicaSet, engines: list[ScriptedEngine]) -> None:
        with pytest.raises(OutOfMemory):
            await replicas.start()
        assert replicas.state is State.UNLOADED
        assert all(engine.closed for engine in engines)

    run(story, lambda: next(kinds)())


class Answering(ScriptedEngine):
    """Answers every question."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def query(self, message: Query) -> None:
        self.asked.append(message.kind)
        self.news.append(Reply(message.id, {"kv_tokens": 1}))


def test_all_go_to_sleep_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT_S", 30.0)

    async def story(replicas: ReplicaSet, engines: list[Any]) -> None:
        await replicas.start()
        replicas.supervise(1000.0)
        await replicas.sleep()
        assert {one.state for one in replicas.replicas} == {State.ASLEEP}
        await replicas.replicas[1].wake()
        await replicas.sleep()
        assert {one.state for one in replicas.replicas} == {State.ASLEEP}
        await replicas.wake()
        engines[1].die()
        await until(lambda: replicas.replicas[1].state is State.RESTARTING)
        with pytest.raises(EngineDied):
            await replicas.sleep()
        assert replicas.replicas[0].state is State.READY
        assert engines[0].asked == ["sleep", "wake"] * 2

    run(story, Answering)


@pytest.mark.parametrize("change", ["sleep", "wake"])
def test_an_engine_that_dies_while_it_goes_to_sleep_or_wakes_is_not_waited_for(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT_S", 30.0)

    async def story(replicas: ReplicaSet, engines: list[Any]) -> None:
        await replicas.start()
        replicas.supervise(1000.0)
        if change == "wake":
            await replicas.sleep()
        engines[0].query = lambda message: None
        changing = asyncio.create_task(getattr(replicas, change)())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        engines[0].die()
        with pytest.raises(EngineDied):
            await changing

    run(story, Answering)
