"""Prefill and decode pools, whose engines do what the test tells them: every request ends once, whatever fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from helpers.scripted_engine import NoText, ScriptedEngine, until
from penstock.deployment import handoff
from penstock.deployment import replica as module
from penstock.deployment.prefill_pool import PrefillPool
from penstock.deployment.protocol import Call, Role, State
from penstock.deployment.replica import Replica
from penstock.deployment.replica_set import ReplicaSet
from penstock.deployment.ticket import Ticket
from penstock.errors import EngineDied, InvalidSetting
from penstock.flow import Delta, FinishReason, Query, Reply, SamplingParams, Submit
from penstock.flow.identity import Source
from penstock.stream.active_request import ActiveRequest
from penstock.stream.choice import ChoiceStream

BLOCK = 4
PROMPT = list(range(100, 119))  # four full blocks and three tokens
IMPORTED = {"blocks": 4, "bytes": 4000, "seconds": 0.1, "cached_tokens": 0, "cause": None, "message": None}


class Engine(ScriptedEngine):
    def __init__(self) -> None:
        super().__init__()
        self.facts = {
            "kv_tokens": 400, "block_size": BLOCK, "prefix_caching": True, "kv_layout": "layout", "context": 300,
            "kv_transfer_tokens": 100,
        }  # fmt: skip
        self.queries: list[Query] = []
        self.submits: list[Submit] = []

    def submit(self, message: Submit) -> None:
        super().submit(message)
        self.submits.append(message)

    def query(self, message: Query) -> None:
        if self.dead is not None:
            raise EngineDied(self.dead)
        self.queries.append(message)

    def asked(self, kind: str) -> bool:
        return any(query.kind == kind for query in self.queries)

    async def answer(self, kind: str, value: Any = None, error: str | None = None) -> Query:
        """The next question of this kind, which is answered."""
        await until(lambda: self.asked(kind))
        query = next(query for query in self.queries if query.kind == kind)
        self.queries.remove(query)
        self.news.append(Reply(query.id, value, error))
        self.say()
        return query

    def die(self) -> None:
        dead = "the engine process died (signal 9)"
        self.news += [Reply(query.id, error=dead) for query in self.queries]
        self.queries = []
        super().die()

    def end(self, why: str) -> None:
        raise AssertionError(why)


def request(name: str, tokens: list[int] = PROMPT, choices: int = 1, **params: Any) -> ActiveRequest:
    sampling = SamplingParams(n=choices, **params)
    submits = [Submit(f"{name}/{place}", tokens, sampling, 0, 9, place) for place in range(choices)]
    return ActiveRequest(name, submits, lambda place: ChoiceStream(place, sampling, NoText()))


class World:
    """Replica 0 is for prefill, the others decode."""

    def __init__(self, engines: list[Engine], replicas: ReplicaSet, pool: PrefillPool) -> None:
        self.engines, self.replicas, self.pool = engines, replicas, pool

    @property
    def prefiller(self) -> Engine:
        return self.engines[0]

    @property
    def decoder(self) -> Engine:
        return self.engines[1]

    def submit(self, active: ActiveRequest) -> Ticket:
        return self.replicas.submit(Call([], [active]))

    async def prefill(self, name: str = "a/0/prefill", cached: int = 0) -> None:
        await until(lambda: name in self.prefiller.open)
        self.prefiller.open.remove(name)
        self.prefiller.say(Delta(id=name, tokens=[7], cached_tokens=cached, finish=FinishReason.LENGTH))

    async def transfer(self, **result: Any) -> None:
        await self.prefiller.answer("kv_export", {"address": "somewhere", "blocks": 4})
        await self.decoder.answer("kv_import", True)
        await self.decoder.answer("kv_import_result", None)
        await self.decoder.answer("kv_import_result", {**IMPORTED, **result})

    async def finish(self, ticket: Ticket, *, engine: Engine | None = None, cached: int = 16) -> None:
        """The request is at the engine that answers it, and ends well."""
        answering = engine or self.decoder
        names = [submit.id for submit in ticket.submits()]
        await until(lambda: set(names) <= set(answering.open))
        for name in names:
            answering.open.remove(name)
            answering.say(Delta(id=name, tokens=[5], cached_tokens=cached, finish=FinishReason.LENGTH))
        await ticket.finished()
        assert ticket.error is None
        assert [choice.tokens for choice in ticket.active_requests[0].choices] == [[5]] * len(names)


def run(story: Callable[[World], Coroutine[Any, Any, None]], replicas: int = 2, min_tokens: int = 8) -> None:
    engines: list[Engine] = []

    def spawned() -> Engine:
        engines.append(Engine())
        return engines[-1]

    async def told() -> None:
        pool = PrefillPool(b"s" * 32, min_tokens)

        def make(number: int) -> Replica:
            return Replica(spawned, Source("m", number), role=Role.DECODE if number else Role.PREFILL)

        made = ReplicaSet(make, replicas, prefill=pool)
        made.spawn()
        try:
            async with asyncio.timeout(5):
                await made.start()
                made.supervise(1000.0)
                await story(World(engines, made, pool))
        finally:
            made.close()

    asyncio.run(told())


def test_the_prompt_is_computed_by_one_replica_and_answered_by_the_other() -> None:
    async def story(world: World) -> None:
        active = request("a")
        ticket = world.submit(active)
        assert world.decoder.submitted == []
        await world.prefill()
        (submit,) = world.prefiller.submits
        assert (submit.tokens, submit.max_output, submit.number) == (PROMPT[:16], 1, 0)
        exported = await world.prefiller.answer("kv_export", {"address": "somewhere", "blocks": 4})
        imported = await world.decoder.answer("kv_import", True)
        assert imported.arguments == {**exported.arguments, "address": "somewhere"}
        assert imported.arguments["tokens"] == PROMPT[:17]
        assert world.decoder.submitted == []
        await world.decoder.answer("kv_import_result", IMPORTED)
        await world.finish(ticket)
        assert active.cached_tokens == 0  # for the client: it was computed for this request
        assert active.found_tokens == 16
        assert world.prefiller.asked("kv_export_end")
        assert not world.decoder.asked("kv_import_cancel")
        totals = world.pool.totals
        assert totals.sums == {"transfers": 1, "blocks": 4, "bytes": 4000, "seconds": totals.sums["seconds"]}
        assert (totals.sums["seconds"] > 0, dict(totals.failures)) == (True, {})
        assert world.replicas.open == 0

    run(story)


@pytest.mark.parametrize(("prefill_cached", "decode_cached", "expected"), [(8, 0, 8), (0, 4, 4), (16, 4, 16)])
def test_what_either_replica_had_cached_counts_as_cached(
    prefill_cached: int, decode_cached: int, expected: int
) -> None:
    async def story(world: World) -> None:
        active = request("a")
        ticket = world.submit(active)
        await world.prefill(cached=prefill_cached)
        await world.transfer(cached_tokens=decode_cached)
        await world.finish(ticket)
        assert active.cached_tokens == expected

    run(story)


def test_all_choices_of_a_request_wait_for_one_prefill() -> None:
    async def story(world: World) -> None:
        ticket = world.submit(request("a", choices=3))
        await world.prefill()
        await world.transfer()
        await world.finish(ticket)
        assert world.prefiller.submitted == ["a/0/prefill"]

    run(story)


@pytest.mark.parametrize(
    "active", [request("a", PROMPT[:8]), request("a", prompt_logprobs=1)], ids=["short", "prompt_logprobs"]
)
def test_requests_that_gain_nothing_skip_the_prefill_pool(active: ActiveRequest) -> None:
    async def story(world: World) -> None:
        await world.finish(world.submit(active))
        assert world.prefiller.submitted == []

    run(story)


def test_a_prompt_that_the_decode_replica_has_skips_the_prefill_pool() -> None:
    async def story(world: World) -> None:
        call = Call([], [request("a")])

        def pick(deployments: Any, picked: Call) -> Any:
            picked.cached_tokens = 12
            return deployments[0]

        world.replicas.pick = pick
        await world.finish(world.replicas.submit(call))
        assert world.prefiller.submitted == []

    run(story)


def test_several_prompts_in_one_request_skip_the_prefill_pool() -> None:
    async def story(world: World) -> None:
        world.replicas.submit(Call([], [request("a"), request("b")]))
        await until(lambda: world.decoder.submitted == ["a/0", "b/0"])

    run(story)


@pytest.mark.parametrize("finish", [FinishReason.ERROR, FinishReason.TIMEOUT, FinishReason.CANCELLED])
def test_a_prefill_that_fails_leaves_the_prompt_to_the_decode_replica(finish: FinishReason) -> None:
    async def story(world: World) -> None:
        ticket = world.submit(request("a"))
        decoder = world.replicas.replicas[1]
        assert decoder.load().open_tokens == 3  # the rest is computed elsewhere
        await until(lambda: world.prefiller.open == ["a/0/prefill"])
        world.prefiller.open = []
        world.prefiller.say(Delta(id="a/0/prefill", finish=finish, error="no"))
        await until(lambda: world.decoder.open == ["a/0"])
        assert decoder.load().open_tokens == len(PROMPT)
        await world.finish(ticket, cached=0)
        assert dict(world.pool.totals.failures) == {"prefill": 1}

    run(story)


@pytest.mark.parametrize("phase", ["prefill", "export", "import", "result"])
def test_the_prefill_replica_dies(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT_S", 30.0)  # it does not come back in this story

    async def story(world: World) -> None:
        ticket = world.submit(request("a"))
        await until(lambda: world.prefiller.open == ["a/0/prefill"])
        if phase != "prefill":
            await world.prefill()
            await until(lambda: world.prefiller.asked("kv_export"))
        if phase in ("import", "result"):
            await world.prefiller.answer("kv_export", {"address": "somewhere", "blocks": 4})
        if phase == "result":
            await world.decoder.answer("kv_import", True)
            await until(lambda: world.decoder.asked("kv_import_result"))
        world.prefiller.die()
        cause = "prefill"
        if phase == "import":
            await world.decoder.answer("kv_import", True)
        if phase in ("import", "result"):  # the decode replica's connection breaks; part of it may be there
            cause = "connection"
            broken = {**IMPORTED, "blocks": 1, "cause": cause, "message": "the other side is gone"}
            await world.decoder.answer("kv_import_result", broken)
        await world.finish(ticket, cached=4)
        assert dict(world.pool.totals.failures) == {cause: 1}
        await until(lambda: world.replicas.replicas[0].state is State.RESTARTING)
        after = world.submit(request("b"))  # goes to the decode replica at once
        await world.finish(after, cached=0)

    run(story)


@pytest.mark.parametrize("phase", ["prefill", "import", "result"])
def test_the_decode_replica_dies(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT_S", 30.0)

    async def story(world: World) -> None:
        other = world.engines[2]
        ticket = world.submit(request("a"))
        await until(lambda: world.prefiller.open == ["a/0/prefill"])
        if phase == "prefill":
            world.decoder.die()
            await until(lambda: world.replicas.replicas[1].state is State.RESTARTING)
            await world.prefill()
            await world.prefiller.answer("kv_export", {"address": "somewhere", "blocks": 4})
        else:
            await world.prefill()
            await world.prefiller.answer("kv_export", {"address": "somewhere", "blocks": 4})
            await until(lambda: world.decoder.asked("kv_import"))
            if phase == "result":
                await world.decoder.answer("kv_import", True)
                await until(lambda: world.decoder.asked("kv_import_result"))
            world.decoder.die()
        await world.finish(ticket, engine=other, cached=0)
        assert ticket.deployment is world.replicas.replicas[2]
        await until(lambda: world.prefiller.asked("kv_export_end"))
        assert dict(world.pool.totals.failures) == {"decode": 1}

    run(story, replicas=3)


def test_a_prefill_replica_answers_while_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT_S", 30.0)

    async def story(world: World) -> None:
        world.decoder.die()
        await until(lambda: world.replicas.replicas[1].state is State.RESTARTING)
        await world.finish(world.submit(request("a")), engine=world.prefiller, cached=0)
        assert world.prefiller.submitted == ["a/0"]
        world.prefiller.die()
        await until(lambda: world.replicas.replicas[0].state is State.RESTARTING)
        with pytest.raises(EngineDied):  # as without pools
            world.submit(request("b"))

    run(story)


def test_a_prefill_replica_answers_what_the_only_decode_replica_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT_S", 30.0)

    async def story(world: World) -> None:
        ticket = world.submit(request("a"))
        await until(lambda: world.prefiller.open == ["a/0/prefill"])
        world.decoder.die()
        await until(lambda: world.replicas.replicas[1].state is State.RESTARTING)
        await world.prefill()
        await world.prefiller.answer("kv_export", {"address": "somewhere", "blocks": 4})
        await world.finish(ticket, engine=world.prefiller, cached=16)
        await until(lambda: world.prefiller.asked("kv_export_end"))
        assert dict(world.pool.totals.failures) == {"decode": 1}

    run(story)


def test_a_prefill_replica_that_has_just_died_leaves_the_prompt_to_the_decode_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT_S", 30.0)

    async def story(world: World) -> None:
        world.prefiller.dead = "the engine process died (signal 9)"  # nobody has noticed
        ticket = world.submit(request("a"))
        await world.finish(ticket, cached=0)
        assert world.decoder.submitted == ["a/0"]  # and not what was meant for the other
        assert dict(world.pool.totals.failures) == {"prefill": 1}
        assert world.replicas.open == 0

    run(story)


PHASES = ["submit", "prefill", "export", "import", "result", "decode"]


@pytest.mark.parametrize("phase", PHASES)
def test_a_client_that_goes_leaves_nothing_behind(phase: str) -> None:
    reached = PHASES.index(phase)

    async def story(world: World) -> None:
        ticket = world.submit(request("a"))
        if phase != "submit":
            await until(lambda: world.prefiller.open == ["a/0/prefill"])
        if reached >= PHASES.index("export"):
            await world.prefill()
            await until(lambda: world.prefiller.asked("kv_export"))
        if phase in ("import", "result"):
            await world.prefiller.answer("kv_export", {"address": "somewhere", "blocks": 4})
            await until(lambda: world.decoder.asked("kv_import"))
        if phase == "result":
            await world.decoder.answer("kv_import", True)
            await until(lambda: world.decoder.asked("kv_import_result"))
        if phase == "decode":
            await world.transfer()
            await until(lambda: world.decoder.open == ["a/0"])
        world.replicas.replicas[1].cancel(ticket)
        if phase == "decode":
            assert world.decoder.cancelled == ["a/0"]
            world.decoder.say(Delta(id="a/0", finish=FinishReason.CANCELLED))
        await until(lambda: ticket.done)  # not `finished`, which is for a client that is there
        assert [choice.finish for choice in ticket.active_requests[0].choices] == [FinishReason.CANCELLED]
        if phase == "prefill":
            await until(lambda: world.prefiller.cancelled == ["a/0/prefill"])
            world.prefiller.say(Delta(id="a/0/prefill", finish=FinishReason.CANCELLED))
        if reached >= PHASES.index("export"):
            await until(lambda: world.prefiller.asked("kv_export_end"))
        if phase in ("import", "result"):
            await until(lambda: world.decoder.asked("kv_import_cancel"))
        await until(lambda: world.replicas.open == 0)
        if phase != "decode":
            assert world.decoder.submitted == []
        assert world.prefiller.submitted == ([] if phase == "submit" else ["a/0/prefill"])
        assert dict(world.pool.totals.failures) == ({} if phase in ("submit", "decode") else {"cancelled": 1})

    run(story)


def test_no_room_in_the_decode_replica() -> None:
    async def story(world: World) -> None:
        ticket = world.submit(request("a"))
        await world.prefill()
        await world.prefiller.answer("kv_export", {"address": "somewhere", "blocks": 4})
        await world.decoder.answer("kv_import", False)
        await world.finish(ticket, cached=0)
        assert dict(world.pool.totals.failures) == {"no_blocks": 1}

    run(story)


def test_blocks_that_the_prefill_replica_no_longer_has() -> None:
    async def story(world: World) -> None:
        ticket = world.submit(request("a"))
        await world.prefill()
        await world.prefiller.answer("kv_export", {"address": "somewhere", "blocks": 0})
        await world.finish(ticket, cached=0)
        assert dict(world.pool.totals.failures) == {"evicted": 1}
        assert not world.decoder.asked("kv_import")

    run(story)


def test_a_request_survives_a_handoff_that_breaks() -> None:
    async def story(world: World) -> None:
        ticket = world.submit(request("a"))
        await world.prefill()
        await world.prefiller.answer("kv_export", "no dictionary")
        await world.finish(ticket, cached=0)
        assert dict(world.pool.totals.failures) == {"internal": 1}
        assert world.prefiller.asked("kv_export_end")

    run(story)


def test_no_room_for_another_export() -> None:
    async def story(world: World) -> None:
        ticket = world.submit(request("a"))
        await world.prefill()
        await world.prefiller.answer("kv_export", None)
        await world.finish(ticket, cached=0)
        assert dict(world.pool.totals.failures) == {"no_blocks": 1}

    run(story)


def test_a_transfer_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handoff, "TRANSFER_S", 0.05)

    async def story(world: World) -> None:
        ticket = world.submit(request("a"))
        await world.prefill()
        await until(lambda: world.prefiller.asked("kv_export"))  # and gets no answer
        await world.finish(ticket, cached=0)
        assert dict(world.pool.totals.failures) == {"timeout": 1}
        assert world.prefiller.asked("kv_export_end")

    run(story)


def test_a_server_that_stops_ends_requests_that_wait_for_a_prefill() -> None:
    async def story(world: World) -> None:
        ticket = world.submit(request("a"))
        await until(lambda: world.prefiller.open == ["a/0/prefill"])
        world.replicas.end_all("the server stops")
        await ticket.finished()
        assert ticket.error is not None
        assert world.decoder.submitted == []

    run(story)


@pytest.mark.parametrize(("length", "handed"), [(100 + BLOCK, True), (100 + BLOCK + 1, False)])
def test_a_prompt_whose_blocks_have_no_room_does_not_go_to_the_prefill_pool(length: int, handed: bool) -> None:
    """It would be computed twice."""

    async def story(world: World) -> None:
        ticket = world.submit(request("a", list(range(100, 100 + length))))
        if handed:
            await world.prefill()
            await world.transfer()
        await world.finish(ticket)
        assert (world.pool.totals.sums["transfers"], world.pool.totals.failures.total()) == (handed, 0)

    run(story)


def test_pools_without_room_for_a_prompt_do_not_start() -> None:
    with pytest.raises(InvalidSetting, match=r"cache of m/0 has 400 tokens, and one .* takes 300: .* \(101\)"):
        run(lambda world: asyncio.sleep(0), min_tokens=101)


def test_replicas_whose_blocks_differ_do_not_start() -> None:
    layouts = iter(["float16", "int8"])

    def spawned() -> Engine:
        engine = Engine()
        assert engine.facts is not None
        engine.facts["kv_layout"] = next(layouts)
        return engine

    async def told() -> None:
        pool = PrefillPool(b"s" * 32, 8)
        made = ReplicaSet(lambda number: Replica(spawned, Source("m", number)), 2, prefill=pool)
        made.spawn()
        with pytest.raises(InvalidSetting, match=r"m/0: float16; m/1: int8"):
            await made.start()
        assert made.replicas == []

    asyncio.run(told())
