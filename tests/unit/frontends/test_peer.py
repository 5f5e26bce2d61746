"""A frontend and its control process over a socket pair, in one event loop: what happens when one of them dies, or says
something wrong, in the middle of a call."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from penstock.deployment.prefill_pool import PrefillPool
from penstock.errors import BudgetExhausted, NotFound, PenstockError, RateLimited, StorageUnavailable
from penstock.flow.identity import Source
from penstock.frontends import peer as peer_module
from penstock.frontends.control_link import ControlLink
from penstock.frontends.messages import (
    Answer,
    Counts,
    DeliveredWire,
    Drained,
    EndEngine,
    Failed,
    Fence,
    Listening,
    PromptSent,
    Release,
    Reserve,
    Status,
)
from penstock.frontends.peer import FrontendPeer
from penstock.frontends.remote import RemoteAccounting, RemoteResponseStore
from penstock.gateway.keys.identity import ANONYMOUS
from penstock.gateway.limits.reservation import Charge, Reservation
from penstock.http.response_store import MemoryResponseStore, StoredResponse
from penstock.http.service import Service

CHARGE = Charge(tokens=10)


class Limits:
    """A limiter and an accounting that note what is asked of them."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.refuses: PenstockError | None = None
        self.limiter: Any = self
        self.clock = lambda: 1.0
        self.tasks: set[asyncio.Task[None]] = set()

    def check_available(self) -> None:
        pass

    async def reserve(self, identity: Any, request: str, charge: Charge) -> Reservation:
        self.said.append(("reserve", request))
        await self.gate.wait()
        if self.refuses is not None:
            raise self.refuses
        return Reservation("", request, identity.tenant, identity.key, charge)

    async def settle(self, held: Reservation, charge: Charge, *, never_began: bool = False) -> None:
        assert never_began
        self.said.append(("give back", held.request))

    async def complete(self, record: Any, held: Reservation | None, *, awaited: bool) -> None:
        self.said.append((f"{record.finish} for {record.microusd}", record.request))

    def run(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)


def _model(name: str, pool: PrefillPool | None) -> Any:
    return SimpleNamespace(name=name, replicas=SimpleNamespace(prefill=pool))


class Pair:
    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.limits = Limits()
        self.gone = 0
        self.ended: list[EndEngine] = []
        self.passed_on: list[PromptSent] = []
        self.journal: Any = None
        self.pool = PrefillPool(b"s", 512)
        service = SimpleNamespace(
            accounting=self.limits,
            responses=MemoryResponseStore(),
            completions=MemoryResponseStore(what="completion"),
            gateway=SimpleNamespace(fallbacks=Counter(), estimated_usage=Counter(), safety=None),
            models=SimpleNamespace(local=[_model("plain", None), _model("pooled", self.pool)]),
        )
        self.service = cast(Service, service)
        self.peer = FrontendPeer(
            ours, self.service, None, on_gone=self._lost, end_engine=self.ended.append, pass_on=self.passed_on.append
        )
        self.link = ControlLink(theirs, lambda message: None, lambda: None)

    def _lost(self) -> None:
        self.gone += 1

    def kill_frontend(self) -> None:
        """Its process is gone, and so is its end of the socket."""
        asyncio.get_running_loop().remove_reader(self.link._framed.fileno())
        self.link._framed.close()

    async def until(self, found: Any) -> None:
        async with asyncio.timeout(10):
            while not found():
                await asyncio.sleep(0)


@asynccontextmanager
async def linked() -> AsyncIterator[Pair]:
    made = Pair()
    try:
        yield made
    finally:
        if made.link._framed.fileno() >= 0:
            made.kill_frontend()
        await made.until(lambda: made.peer.gone)


def reserve(made: Pair, name: str = "req-1") -> asyncio.Task[Reservation]:
    accounting = RemoteAccounting(made.link, durable=True)
    return asyncio.ensure_future(accounting.reserve(ANONYMOUS, name, CHARGE, "tiny"))


def test_a_frontend_that_dies_in_the_middle_of_a_reservation_holds_nothing() -> None:
    async def run() -> None:
        async with linked() as made:
            made.limits.gate.clear()
            waiting = reserve(made)
            await made.until(lambda: made.limits.said)
            made.kill_frontend()
            await made.until(lambda: made.peer.gone)
            made.limits.gate.set()
            await made.until(lambda: ("give back", "req-1") in made.limits.said)
            waiting.cancel()
            assert (made.gone, made.limits.said) == (1, [("reserve", "req-1"), ("give back", "req-1")])

    asyncio.run(run())


def test_what_a_dead_frontend_had_open_is_recorded_once_and_not_charged() -> None:
    async def run() -> None:
        async with linked() as made:
            await reserve(made)
            made.kill_frontend()
            await made.until(lambda: made.peer.gone)
            await asyncio.gather(*made.limits.tasks)
            assert made.limits.said == [("reserve", "req-1"), ("error for 0", "req-1")]
            made.peer.close()  # again
            assert made.gone == 1

    asyncio.run(run())


def test_a_reservation_whose_caller_has_gone_is_given_back_once() -> None:
    async def run() -> None:
        async with linked() as made:
            made.limits.gate.clear()
            waiting = reserve(made)
            await made.until(lambda: made.limits.said)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            made.limits.gate.set()
            await made.until(lambda: ("give back", "req-1") in made.limits.said)
            await reserve(made, "req-2")  # the late answer is nobody's: the next call gets its own
            assert made.limits.said == [("reserve", "req-1"), ("give back", "req-1"), ("reserve", "req-2")]

    asyncio.run(run())


def test_others_are_told_of_a_prompt_unless_they_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with linked() as made:
            assert not made.peer.hears  # it starts
            made.link.tell(Listening())
            made.link.tell(sent := PromptSent(Source("tiny", 1), b"k" * 32))
            await made.until(lambda: made.passed_on)
            assert made.passed_on == [sent]
            assert made.peer.hears
            monkeypatch.setattr(peer_module, "HEARS_S", 0.0)
            assert not made.peer.hears

    asyncio.run(run())


def test_an_answer_to_no_call_is_dropped() -> None:
    async def run() -> None:
        async with linked() as made:
            made.peer.send(Answer(99, "late"))
            assert (await reserve(made)).request == "req-1"

    asyncio.run(run())


def test_errors_of_limits_arrive_with_all_that_a_client_is_told() -> None:
    async def run() -> None:
        async with linked() as made:
            refused = BudgetExhausted("no more today")
            refused.retry_after_s, refused.headers = 7.5, {"x-ratelimit-reset": "7"}
            refused.owner, refused.limit = "tenant acme", "microusd_per_day"
            made.limits.refuses = refused
            with pytest.raises(BudgetExhausted, match="no more today") as caught:
                await reserve(made)
            told = caught.value
            assert (told.retry_after_s, told.headers, told.owner, told.limit) == (
                7.5, {"x-ratelimit-reset": "7"}, "tenant acme", "microusd_per_day",
            )  # fmt: skip

    asyncio.run(run())


def test_an_error_that_is_not_one_of_ours_is_an_internal_one() -> None:
    async def run() -> None:
        async with linked() as made:
            made.limits.refuses = cast(PenstockError, KeyError("x"))
            with pytest.raises(PenstockError) as caught:
                await reserve(made)
            assert (caught.value.status, caught.value.code) == (500, "internal_error")

    asyncio.run(run())


@pytest.mark.parametrize("error", [NotFound("no", param="a"), RateLimited("slow"), StorageUnavailable("away")])
def test_errors_keep_their_kind(error: PenstockError) -> None:
    back = Failed.of(error).error()
    assert (type(back), back.message, back.param, back.status) == (
        type(error),
        error.message,
        error.param,
        error.status,
    )


@pytest.mark.parametrize("data", [b"\xc1", msgspec.msgpack.encode([["Nonsense", 1]]), msgspec.msgpack.encode(7)])
def test_a_frontend_that_sends_nonsense_is_given_up(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with linked() as made:
            exits: list[int] = []

            def end_process(code: int) -> None:
                exits.append(code)
                asyncio.get_running_loop().remove_reader(made.link._framed.fileno())

            monkeypatch.setattr(os, "_exit", end_process)
            await reserve(made)
            made.link._framed.send(data)
            await made.until(lambda: made.peer.gone)
            await asyncio.gather(*made.limits.tasks)
            assert made.gone == 1
            assert made.limits.said[-1] == ("error for 0", "req-1")
            assert made.peer.listening.is_set()  # a start that waits for it ends
            made.peer.send(Answer(1))  # goes nowhere
            await made.until(lambda: exits)  # it ends when its socket is closed

    asyncio.run(run())


def test_a_message_larger_than_the_sockets_buffers_arrives_whole() -> None:
    async def run() -> None:
        async with linked() as made:
            store = RemoteResponseStore(made.link, what="response")
            large = StoredResponse(b"x" * (5 << 20), b"[]")
            await store.put("alice", "resp_1", large)
            assert await made.service.responses.get("alice", "resp_1") == large
            assert await store.get("alice", "resp_1") == large
            with pytest.raises(NotFound) as caught:
                await store.get("bob", "resp_1", param="previous_response_id")
            assert caught.value.param == "previous_response_id"
            with pytest.raises(NotFound, match="no completion"):
                await RemoteResponseStore(made.link, what="completion").get("alice", "resp_1")

    asyncio.run(run())


def test_a_fence_ends_with_its_status_or_with_its_frontend() -> None:
    async def run() -> None:
        async with linked() as made:
            await made.peer.fence(Fence(1))  # not listening yet: it has told nothing
            made.link.tell(Listening())
            await made.until(made.peer.listening.is_set)
            first, second = (asyncio.ensure_future(made.peer.fence(Fence(number))) for number in (2, 3))
            made.link.tell(Status(2, Counts(tasks=5)))
            await made.until(first.done)
            assert (made.peer.counts.tasks, second.done()) == (5, False)
            made.kill_frontend()
            await made.until(second.done)
            assert made.peer.counts == Counts()  # what it had open is gone with it

    asyncio.run(run())


def test_a_part_of_a_step_waits_for_the_steps_record_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with linked() as made:
            recorded: list[Any] = []
            steps = SimpleNamespace(last=4)
            trace = SimpleNamespace(steps=steps, ring_number=lambda step: step)
            made.peer._journal = cast(Any, SimpleNamespace(replica=lambda _: trace, record=recorded.append, open={}))

            def part(step: int) -> DeliveredWire:
                return DeliveredWire(1.0, 1.0, [], [], Source("tiny"), b"", 1.0, step)

            for step in (4, 5, 4):
                made.link.tell(part(step))
            made.link.tell(Drained())  # no part of the journal: it is not held up
            await made.until(made.peer.drained.is_set)
            assert [event.step for event in recorded] == [4]
            steps.last = 5
            await made.until(lambda: len(recorded) == 3)
            assert [event.step for event in recorded] == [4, 5, 4]  # in order
            monkeypatch.setattr(peer_module, "RECORD_S", 0.0)
            made.link.tell(part(9))
            await made.until(lambda: len(recorded) == 4)

    asyncio.run(run())


def test_messages_of_one_turn_arrive_in_order() -> None:
    async def run() -> None:
        async with linked() as made:
            source = Source("tiny")
            for number in range(5):
                made.link.tell(EndEngine(source, str(number)))
            await made.until(lambda: len(made.ended) == 5)
            assert [message.why for message in made.ended] == ["0", "1", "2", "3", "4"]

    asyncio.run(run())


def test_a_release_that_overtakes_its_reservation_waits_for_it() -> None:
    async def run() -> None:
        async with linked() as made:
            made.limits.gate.clear()
            made.link.tell(Reserve(0, ANONYMOUS, "req-1", CHARGE, "tiny"))
            made.link.tell(Release(0, "req-1"))
            await made.until(lambda: made.limits.said)
            await asyncio.sleep(0)
            assert made.limits.said == [("reserve", "req-1")]
            made.limits.gate.set()
            await made.until(lambda: len(made.limits.said) == 2)
            assert made.limits.said[-1] == ("give back", "req-1")
            assert not made.peer._accounts

    asyncio.run(run())


def test_transfers_of_all_frontends_add_up() -> None:
    """Each of them tells what it has counted since its start."""

    async def run() -> None:
        async with linked() as made, linked() as other:
            other.peer._service = made.service
            totals = made.pool.totals
            totals.add(2, 50, 0.25)  # of the control process itself
            for blocks in (3, 5):
                sums = [(("pooled", "transfers"), 1), (("pooled", "blocks"), blocks), (("pooled", "seconds"), 0.5)]
                made.link.tell(Status(0, Counts(transfers=sums)))
            other.link.tell(Status(0, Counts(transfer_failures=[(("pooled", "timeout"), 2)])))
            await made.until(lambda: totals.sums["blocks"] == 2 + 5 and totals.failures)
            assert totals.sums == {"transfers": 2, "blocks": 7, "bytes": 50, "seconds": 0.75}
            assert dict(totals.failures) == {"timeout": 2}

    asyncio.run(run())
