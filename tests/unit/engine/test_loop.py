"""The loop with constraints: a sequence waits until its grammar is there, and everybody else goes on meanwhile."""

import threading
from pathlib import Path

import pytest

from helpers import tiny_models
from helpers.counting_backend import CountingBackend
from penstock.cache import CacheManager
from penstock.engine.loop import MAX_FINDING, EngineLoop
from penstock.errors import InvalidRequest
from penstock.flow import (
    Cancel,
    Constraint,
    Delta,
    FinishReason,
    Query,
    Reply,
    RowResult,
    SamplingParams,
    StepResult,
    Submit,
)
from penstock.grammar.compiler import Compiler
from penstock.grammar.grammar_cache import GrammarCache
from penstock.schedule import Scheduler
from penstock.store.spec import CacheGroup

CONSTRAINT = Constraint.choice(["abc"])


class Gate(Compiler):
    """Compiles when it is opened."""

    def __init__(self, tokenizer: Path) -> None:
        super().__init__(tokenizer, tiny_models.VOCAB, (tiny_models.END_TOKEN,))
        self.opened = threading.Event()
        self.error: InvalidRequest | None = None

    def compile(self, constraint: Constraint):  # type: ignore[no-untyped-def]
        assert self.opened.wait(60)
        if self.error is not None:
            raise self.error
        return super().compile(constraint)


class World:
    def __init__(self, folder: Path) -> None:
        tiny_models.save_tokenizer(folder)
        self.gate = Gate(folder / "tokenizer.json")
        self.now = 0.0
        cache = CacheManager((CacheGroup(0, (0,)),), (32,), 4, True)
        scheduler = Scheduler(
            cache, step_tokens=32, max_sequences=4, max_waiting=100, policy="fcfs", lookahead=0, context=32,
            clock=lambda: self.now,
        )  # fmt: skip
        self.loop = EngineLoop(scheduler, CountingBackend(), GrammarCache(self.gate))

    def submit(self, name: str, constraint: Constraint | None = None, deadline: float | None = None) -> None:
        params = SamplingParams(constraint=constraint)
        self.loop.handle(Submit(id=name, tokens=[1, 2, 3], params=params, seed=0, max_output=2, deadline_s=deadline))

    def until_done(self, *names: str) -> dict[str, Delta]:
        last: dict[str, Delta] = {}
        while set(names) - set(last):
            frame = self.loop.step()
            for delta in frame.deltas if frame else ():
                if delta.finish is not None:
                    assert delta.id not in last
                    last[delta.id] = delta
            self.loop.scheduler.check_integrity()
        return last


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_others_go_on_while_a_grammar_is_compiled(world: World) -> None:
    world.submit("bound", CONSTRAINT)
    world.submit("free")
    assert world.until_done("free")["free"].finish is FinishReason.LENGTH
    for _ in range(3):
        assert world.loop.step() is None
    assert world.loop.has_work
    world.gate.opened.set()
    assert world.until_done("bound")["bound"].finish is FinishReason.LENGTH
    world.submit("next", CONSTRAINT)  # it is there now
    assert not world.loop.held
    world.until_done("next")


def test_what_does_not_compile_ends_with_an_error(world: World) -> None:
    world.gate.error = InvalidRequest("no good", param=CONSTRAINT.param)
    world.gate.opened.set()
    for name in ("a", "b"):
        world.submit(name, CONSTRAINT)
    for delta in world.until_done("a", "b").values():
        assert (delta.finish, delta.error, delta.code) == (FinishReason.ERROR, "no good", "invalid_request")
    assert not world.loop.has_work


def test_one_that_waits_can_be_cancelled_and_can_time_out(world: World) -> None:
    world.submit("cancelled", CONSTRAINT)
    world.submit("late", CONSTRAINT, deadline=5.0)
    world.submit("patient", CONSTRAINT)
    world.loop.handle(Cancel("cancelled"))
    assert world.until_done("cancelled")["cancelled"].finish is FinishReason.CANCELLED
    world.now = 6.0
    assert world.until_done("late")["late"].finish is FinishReason.TIMEOUT
    world.gate.opened.set()
    assert world.until_done("patient")["patient"].finish is FinishReason.LENGTH
    assert not world.loop.has_work


def test_a_question_that_goes_wrong_is_answered_and_ends_nothing(world: World) -> None:
    world.submit("free")
    world.loop.step()
    for query in (
        Query(1, "stats", {"no": "such"}),
        Query(2, "prefix_tree", {"tenant": "", "limit": 1, "numbers": None}),
    ):
        reply = world.loop.handle(query)
        assert reply is not None
        assert reply.id == query.id
        assert "the query failed" in (reply.error or "")
    assert world.until_done("free")["free"].finish is FinishReason.LENGTH


def test_a_check_that_fails_says_what_is_wrong_and_ends_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.submit("free")
    world.loop.step()
    assert world.loop.handle(Query(1, "check")) == Reply(1)
    pool = world.loop.scheduler._queues.cache.pools[0]
    taken = pool._free.pop()
    reply = world.loop.handle(Query(2, "check"))
    assert reply is not None
    assert "blocks without a holder" in reply.value
    pool._free.append(taken)
    assert world.loop.handle(Query(3, "check")) == Reply(3)
    with monkeypatch.context() as broken:
        broken.setattr(pool, "check_integrity", lambda _: {}["lost " * 1000])
        reply = world.loop.handle(Query(4, "check"))
    assert reply is not None
    assert reply.value.startswith("KeyError: 'lost lost")
    assert len(reply.value) == MAX_FINDING
    assert world.until_done("free")["free"].finish is FinishReason.LENGTH


def test_an_engine_without_a_vocabulary_refuses(world: World) -> None:
    world.loop.grammars = None
    world.submit("bound", CONSTRAINT)
    delta = world.until_done("bound")["bound"]
    assert (delta.finish, delta.code) == (FinishReason.ERROR, "invalid_request")


def test_constraints_end_sequences(world: World) -> None:
    """Behind the last token, or without one."""
    world.gate.opened.set()
    backend = world.loop.backend
    assert isinstance(backend, CountingBackend)
    for finish, tokens in ((FinishReason.COMPLETE, [9]), (FinishReason.DEAD_END, [])):
        world.submit("x", CONSTRAINT)
        while not backend.plans:
            world.loop._release(wait_s=1.0)
            plan = world.loop.scheduler.plan()
            if plan is not None:
                backend.launch(plan)
        number = backend.plans.pop(0).number
        (delta,) = world.loop.scheduler.settle(StepResult(number, [RowResult(list(tokens), finish=finish)]))
        assert (delta.tokens, delta.finish) == (tokens, finish)
        world.loop.scheduler.check_integrity()
        assert not world.loop.has_work
