"""An engine under supervision, without a process: what is kept, what is given up, and that it goes on for ever."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from helpers.scripted_engine import NoText, ScriptedEngine, active, until
from penstock.deployment import outbox
from penstock.deployment import replica as module
from penstock.deployment.protocol import Call, Load, State
from penstock.deployment.replica import Replica
from penstock.deployment.ticket import Ticket
from penstock.errors import EngineDied, OutOfMemory
from penstock.flow import Cancel, Delta, FinishReason, Frame, Query, Reply, SamplingParams, Submit
from penstock.stream.active_request import ActiveRequest
from penstock.stream.choice import ChoiceStream


def run(
    story: Callable[[Replica, list[ScriptedEngine]], Coroutine[Any, Any, None]],
    spawn: Callable[[], ScriptedEngine],
    *,
    hang_s: float = 1000.0,
    ends: bool = False,
) -> None:
    """Tell the story of a replica that is ready and supervised, to the end of it if it `ends`."""
    engines: list[ScriptedEngine] = []

    def spawned() -> ScriptedEngine:
        engines.append(spawn())
        return engines[-1]

    async def told() -> None:
        replica = Replica(spawned)
        await replica.start()
        supervising = asyncio.create_task(replica.supervise(hang_s))
        try:
            async with asyncio.timeout(30):
                await story(replica, engines)
                if ends:
                    await until(supervising.done)
            assert supervising.done() == ends
        finally:
            supervising.cancel()
            replica.close()

    asyncio.run(told())


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT_S", 0.0)
    monkeypatch.setattr(module, "DELIVERY_S", 10.0)  # a slow machine does not divide a delivery


class _Letters(NoText):
    def push(self, token: int) -> str:
        return chr(token)


class _AnswersAtOnce(ScriptedEngine):
    """What a Cancel brings about arrives while it is being sent, and its signal is lost, as sockets may do it."""

    def cancel(self, message: Cancel) -> None:
        super().cancel(message)
        self.news.append(Frame([Delta(id=message.id, finish=FinishReason.STOP_STRING)]))


def test_phases_can_be_read_before_the_start_waits_for_the_engine() -> None:
    class Starting(ScriptedEngine):
        def __init__(self) -> None:
            super().__init__()
            self.facts = None

        def receive(self, timeout_s: float | None = None) -> list[Frame | Reply]:
            assert timeout_s == 0
            self.facts = {"kv_tokens": 1}  # it became ready meanwhile
            return []

    async def story() -> None:
        replica = Replica(Starting)
        replica.read_phases()
        async with asyncio.timeout(30):
            await replica.start()
        assert replica.facts == {"kv_tokens": 1}
        replica.close()

    asyncio.run(story())


def test_no_news_is_lost_behind_a_cancel() -> None:
    async def story(replica: Replica, engines: list[ScriptedEngine]) -> None:
        params = SamplingParams(stop=("e",))
        ended = replica.submit(
            Call(
                [],
                [ActiveRequest("a", [Submit("a/0", [1], params, 0, 9)], lambda _: ChoiceStream(0, params, _Letters()))],
            )
        )
        await asyncio.sleep(0.01)
        engines[0].say(Delta(id="a/0", tokens=[ord("e")]))
        await ended.finished()
        assert engines[0].cancelled == ["a/0"]
        assert replica.open == 0

    run(story, _AnswersAtOnce)


def test_others_have_their_turn_however_much_an_engine_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DELIVERY_S", 0.0)

    class Talkative(ScriptedEngine):
        """Has said more each time somebody asks, and all of it at once."""

        said = 0

        def receive(self, timeout_s: float | None = None) -> list[Frame | Reply]:
            news = super().receive(timeout_s)
            if self.open and self.said < 100:
                self.said += 10
                news += [Frame([Delta(id=self.open[0], tokens=[1])]) for _ in range(10)]
            return news

    async def story(replica: Replica, engines: list[ScriptedEngine]) -> None:
        ticket = replica.submit(Call([], [active("a")]))
        taken = []
        while sum(taken) < 100:
            taken.append(len(await ticket.take()))
        assert max(taken) < 10  # the client was there before the engine had said all it had
        assert len(ticket.active_requests[0].choices[0].tokens) == 100

    run(story, Talkative)


class _Unreadable(NoText):
    def push(self, token: int) -> str:
        raise RecursionError


def test_an_answer_that_cannot_be_read_takes_no_other_along(caplog: pytest.LogCaptureFixture) -> None:
    async def story(replica: Replica, engines: list[ScriptedEngine]) -> None:
        params = SamplingParams()
        poisoned = replica.submit(
            Call(
                [],
                [
                    ActiveRequest(
                        "a", [Submit("a/0", [1], params, 0, 9)], lambda _: ChoiceStream(0, params, _Unreadable())
                    )
                ],
            )
        )
        other = replica.submit(Call([], [active("b")]))
        engines[0].say(Delta(id="a/0", tokens=[1]), Delta(id="b/0", tokens=[1], finish=FinishReason.LENGTH))
        await other.finished()
        assert other.error is None
        assert engines[0].cancelled == ["a/0"]
        engines[0].say(Delta(id="a/0", tokens=[2], finish=FinishReason.CANCELLED))
        await poisoned.finished()
        assert poisoned.error is not None
        assert poisoned.error.status == 500
        assert replica.open == 0

    run(story, ScriptedEngine)
    assert "the answer of request a could not be read" in caplog.text


def test_no_engine_is_started_once_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT_S", 0.05)

    async def story(replica: Replica, engines: list[ScriptedEngine]) -> None:
        engines[0].die()
        await until(lambda: engines[0].closed)
        replica.close(at_once=True)
        await asyncio.sleep(0.2)
        assert len(engines) == 1

    run(story, ScriptedEngine, ends=True)


def test_the_facts_of_every_engine_are_handed_on() -> None:
    told: list[dict[str, Any]] = []

    async def story(replica: Replica, engines: list[ScriptedEngine]) -> None:
        replica.add_ready_listener(told.append)
        engines[0].die()
        await until(lambda: len(engines) == 2 and replica.state is State.READY)
        assert told == [engines[1].facts]

    run(story, ScriptedEngine)


def test_what_has_not_begun_goes_to_the_next_engine() -> None:
    async def story(replica: Replica, engines: list[ScriptedEngine]) -> None:
        begun, queued, left = (
            replica.submit(Call([], [active("a")])),
            replica.submit(Call([], [active("b")])),
            replica.submit(Call([], [active("c")])),
        )
        engines[0].say(Delta(id="a/0", tokens=[5]))
        await begun.take()
        engines[0].die()
        await begun.finished()
        assert isinstance(begun.error, EngineDied)
        assert replica.state is State.RESTARTING
        replica.cancel(left)
        assert left.done
        await until(lambda: replica.state is State.READY)
        assert engines[1].submitted == ["b/0"]
        engines[1].say(Delta(id="b/0", tokens=[5], finish=FinishReason.END))
        await queued.finished()
        assert queued.error is None
        assert (replica.open, replica.restarts) == (0, 1)

    run(story, ScriptedEngine)


def test_an_answer_of_which_the_client_has_seen_nothing_starts_again() -> None:
    async def story(replica: Replica, engines: list[ScriptedEngine]) -> None:
        params = SamplingParams(n=2)
        submits = [Submit(f"a/{choice}", [1], params, 0, 9, choice, number=choice + 1) for choice in range(2)]
        answer = ActiveRequest("a", submits, lambda choice: ChoiceStream(choice, params, _Letters()))
        ticket = replica.submit(Call([], [answer]))
        waiting = asyncio.create_task(ticket.finished())
        engines[0].say(Delta(id="a/0", tokens=[ord("x")]), Delta(id="a/1", tokens=[ord("u")], finish=FinishReason.END))
        await until(lambda: bool(answer.choices[0].tokens))
        engines[0].open.remove("a/1")
        engines[0].die()
        await until(lambda: len(engines) == 2 and replica.state is State.READY)
        assert engines[1].submitted == ["a/0"]
        assert replica.load() == Load(open=1, open_tokens=1)
        engines[1].say(Delta(id="a/0", tokens=[ord("y")], finish=FinishReason.LENGTH))
        await waiting
        assert ticket.error is None
        assert [choice.text for choice in answer.completion().choices] == ["y", ""]
        assert replica.load() == Load()

    run(story, ScriptedEngine)


def test_what_nobody_waits_for_goes_nowhere() -> None:
    """The engine dies before it has let go of what was cancelled."""

    async def story(replica: Replica, engines: list[ScriptedEngine]) -> None:
        gone, there = replica.submit(Call([], [active("gone")])), replica.submit(Call([], [active("there")]))
        replica.cancel(gone)
        engines[0].die()
        await until(lambda: replica.state is State.READY and len(engines) == 2)

        assert gone.done
        assert engines[1].submitted == ["there/0"]
        assert not there.done

    run(story, ScriptedEngine)


def test_but_only_once() -> None:
    async def story(replica: Replica, engines: list[ScriptedEngine]) -> None:
        ticket = replica.submit(Call([], [active("a")]))
        engines[0].die()
        await until(lambda: len(engines) == 2 and replica.state is State.READY)
        engines[1].die()
        await ticket.finished()
        assert isinstance(ticket.error, EngineDied)
        await until(lambda: len(engines) == 3 and replica.state is State.READY)
        assert engines[2].submitted == []

    run(story, ScriptedEngine)


def test_a_death_that_nobody_has_noticed_yet() -> None:
    async def story(replica: Replica, engines: list[ScriptedEngine]) -> None:
        engines[0].die()
        ticket = replica.submit(Call([], [active("a", choices=2)]))
        await until(lambda: len(engines) == 2 and replica.state is State.READY)
        assert engines[1].submitted == ["a/0", "a/1"]
        engines[1].say(*(Delta(id=f"a/{choice}", finish=FinishReason.LENGTH) for choice in range(2)))
        await ticket.finished()
        assert ticket.error is None

    run(story, ScriptedEngine)


def test_nobody_waits_for_an_engine_that_does_not_come_back() -> None:
    spawned = 0

    def spawn() -> ScriptedEngine:
        """The second cannot be started, and the third fails by itself."""
        nonlocal spawned
        spawned += 1
        if spawned == 2:
            raise OSError("no memory")
        engine = ScriptedEngine()
        if spawned == 3:
            engine.facts, engine.failure = None, OutOfMemory("still no memory")
            engine.die()
        return engine

    async def story(replica: Replica, engines: list[ScriptedEngine]) -> None:
        ticket = replica.submit(Call([], [active("a")]))
        engines[0].die()
        await ticket.finished()
        assert isinstance(ticket.error, EngineDied)
        await until(lambda: replica.state is State.READY)
        assert replica.restarts == 3
        assert replica.submit(Call([], [active("b")])) is not None

    run(story, spawn)


def test_one_part_that_fails_ends_the_whole() -> None:
    async def story(replica: Replica, engines: list[ScriptedEngine]) -> None:
        ticket = replica.submit(Call([], [active("a"), active("b")]))
        engines[0].say(Delta(id="b/0", finish=FinishReason.ERROR, error="full", code="queue_full"))
        await ticket.finished()
        assert ticket.error is not None
        assert ticket.error.status == 429
        assert not ticket.done
        replica.cancel(ticket)
        assert engines[0].cancelled == ["a/0"]

    run(story, ScriptedEngine)


def test_the_end_of_everything() -> None:
    async def story(replica: Replica, engines: list[ScriptedEngine]) -> None:
        tickets: Iterator[Ticket] = iter(
            [replica.submit(Call([], [active("a", choices=2)])), replica.submit(Call([], [active("b")]))]
        )
        replica.end_all("the server is shutting down")
        for ticket in tickets:
            await ticket.finished()
            assert ticket.done
            assert ticket.error is not None
            assert (ticket.error.status, ticket.error.code) == (503, "shutting_down")
        assert replica.open == 0
        assert engines[0].cancelled == ["a/0", "a/1", "b/0"]

    run(story, ScriptedEngine)


# --- engines that hang

HANG_S = 0.02


class Asked(ScriptedEngine):
    """Answers, though its steps have nothing to tell."""

    running, steps, advance = 1, 0, 1

    def query(self, message: Query) -> None:
        self.steps += self.advance
        self.news.append(Reply(message.id, {"running": self.running, "steps": self.steps}))
        os.write(self.ends[1], b"!")


class Idling(Asked):
    """Nothing runs: what it has waits for something."""

    running = advance = 0


class Circling(Asked):
    """It answers, but no step ends."""

    advance = 0


@pytest.mark.parametrize("kind", [ScriptedEngine, Circling])
def test_an_engine_that_hangs_is_replaced(kind: type[ScriptedEngine]) -> None:
    kinds = iter([kind, Asked])

    async def story(replica: Replica, engines: list[ScriptedEngine]) -> None:
        begun, queued = replica.submit(Call([], [active("a")])), replica.submit(Call([], [active("b")]))
        engines[0].say(Delta(id="a/0", tokens=[5]))
        await begun.take()
        await begun.finished()
        assert isinstance(begun.error, EngineDied)
        assert "no sign of life for 0.02 s and was ended while it worked on this request" in begun.error.message
        assert replica.state is State.RESTARTING
        await until(lambda: replica.state is State.READY)
        assert engines[0].closed
        assert engines[1].submitted == ["b/0"]
        engines[1].say(Delta(id="b/0", finish=FinishReason.END))
        await queued.finished()
        assert (queued.error, replica.open, replica.restarts) == (None, 0, 1)

    run(story, lambda: next(kinds)(), hang_s=HANG_S)


@pytest.mark.parametrize("kind", [Asked, Idling])
def test_one_that_is_only_slow_is_not(kind: type[ScriptedEngine]) -> None:
    async def story(replica: Replica, engines: list[ScriptedEngine]) -> None:
        ticket = replica.submit(Call([], [active("a")]))
        await asyncio.sleep(10 * HANG_S)
        assert not ticket.done
        engines[0].say(Delta(id="a/0", finish=FinishReason.END))
        await ticket.finished()
        assert (ticket.error, replica.restarts) == (None, 0)

    run(story, kind, hang_s=HANG_S)


def test_nor_one_that_has_nothing_to_do() -> None:
    async def story(replica: Replica, engines: list[ScriptedEngine]) -> None:
        await asyncio.sleep(10 * HANG_S)
        assert (replica.state, replica.restarts) == (State.READY, 0)

    run(story, ScriptedEngine, hang_s=HANG_S)


@pytest.mark.parametrize("change", ["sleep", "wake"])
def test_one_that_hangs_while_it_goes_to_sleep_or_wakes_is_replaced(change: str) -> None:
    class Stuck(ScriptedEngine):
        def query(self, message: Query) -> None:
            if message.kind == "sleep" and change == "wake":
                self.news.append(Reply(message.id, None))
                os.write(self.ends[1], b"!")

    kinds = iter([Stuck, ScriptedEngine])

    async def story(replica: Replica, engines: list[ScriptedEngine]) -> None:
        if change == "wake":
            await replica.sleep()
            await asyncio.sleep(10 * HANG_S)  # asleep, it has nothing to do
            assert (replica.state, replica.restarts) == (State.ASLEEP, 0)
        with pytest.raises(EngineDied, match=r"gave no sign of life for 0\.02 s and was ended"):
            await getattr(replica, change)()
        await until(lambda: replica.state is State.READY)
        assert (engines[0].closed, replica.restarts) == (True, 1)
        await asyncio.sleep(10 * HANG_S)
        assert (replica.state, replica.restarts) == (State.READY, 1)

    run(story, lambda: next(kinds)(), hang_s=HANG_S)


def test_the_next_engine_is_asked_again_after_one_that_did_not_answer() -> None:
    kinds = iter([ScriptedEngine, Asked])

    async def story(replica: Replica, engines: list[ScriptedEngine]) -> None:
        replica.submit(Call([], [active("a")]))
        await until(lambda: replica.restarts == 1 and replica.state is State.READY)
        await asyncio.sleep(10 * HANG_S)  # its steps have nothing to tell
        assert (replica.state, replica.restarts) == (State.READY, 1)

    run(story, lambda: next(kinds)(), hang_s=HANG_S)


def test_many_sequences_are_handed_over_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "SUBMITS_PER_TURN", 2)

    async def story(replica: Replica, engines: list[ScriptedEngine]) -> None:
        replica.submit(Call([], [active("many", 5)]))
        replica.submit(Call([], [active("one")]))
        assert engines[0].submitted == ["many/0", "many/1"]  # others have a turn before the rest
        for _ in range(5):
            await asyncio.sleep(0)
        assert engines[0].submitted == [*(f"many/{choice}" for choice in range(5)), "one/0"]

    run(story, ScriptedEngine)


def test_what_was_not_handed_over_yet_ends_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "SUBMITS_PER_TURN", 2)

    async def story(replica: Replica, engines: list[ScriptedEngine]) -> None:
        ticket = replica.submit(Call([], [active("many", 5)]))
        replica.cancel(ticket)
        for _ in range(5):
            await asyncio.sleep(0)
        assert engines[0].submitted == engines[0].cancelled == ["many/0", "many/1"]
        assert replica.open == 2  # until the engine has let go of them
        engines[0].say(*(Delta(id=f"many/{choice}", finish=FinishReason.CANCELLED) for choice in (0, 1)))
        while replica.open:
            await asyncio.sleep(0)
        assert ticket.done

    run(story, ScriptedEngine)


def test_what_was_not_handed_over_yet_waits_for_the_next_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "SUBMITS_PER_TURN", 2)
    monkeypatch.setattr(module, "FIRST_WAIT_S", 0.0)

    async def story(replica: Replica, engines: list[ScriptedEngine]) -> None:
        ticket = replica.submit(Call([], [active("many", 5)]))
        engines[0].die()
        replica._pump()  # it is noticed before the next portion
        while len(engines) < 2 or replica.state is not State.READY:
            await asyncio.sleep(0)
        assert sorted(engines[1].submitted) == [f"many/{choice}" for choice in range(5)]
        engines[1].say(*(Delta(id=f"many/{choice}", finish=FinishReason.LENGTH) for choice in range(5)))
        while not ticket.done:
            await asyncio.sleep(0)
        assert ticket.error is None

    run(story, ScriptedEngine)
