"""The router: snapshots of deployments, the record of its decisions, and what it learns from tickets that end."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from penstock.deployment.prefix_tracker import PrefixTracker
from penstock.deployment.protocol import Call, Load, ModelCard, State
from penstock.deployment.ticket import Ticket
from penstock.errors import QueueFull, UpstreamBusy, UpstreamFailed
from penstock.flow import FinishReason, Request, SamplingParams, Submit, Timings
from penstock.flow.identity import Source
from penstock.gateway.breaker import MIN_FAILURES, BreakerState
from penstock.gateway.candidate import STALE_LOAD_S
from penstock.gateway.router import Router
from penstock.stream.active_request import ActiveRequest
from penstock.stream.remote_choice import RemoteChoice

SIZE = 4


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeDeployment:
    def __init__(self, place: int, *, tracked: bool = True) -> None:
        self.name = f"m/{place}"
        self.source = Source("m", place)
        self.card = ModelCard(name="m")
        self.state = State.READY
        self.prefixes = PrefixTracker(100, SIZE) if tracked else None
        self.reported: float | None = None
        self.open_tokens = 0
        self.told: Load | None = None

    def load(self) -> Load:
        return self.told or Load(open=int(self.open_tokens > 0), open_tokens=self.open_tokens, reported=self.reported)

    def submit(self, call: Call) -> Ticket:
        raise NotImplementedError

    def cancel(self, ticket: Ticket) -> None: ...


def call(*tokens: int) -> Call:
    params = SamplingParams(max_tokens=8)
    submit = Submit(id="r/0", tokens=list(tokens), params=params, seed=0, max_output=8)
    active = ActiveRequest("r", [submit], lambda index: RemoteChoice(index, params))
    return Call([Request(id="r", params=params, tokens=list(tokens))], [active])


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def router(clock: Clock) -> Router:
    return Router("prefix", secret=b"secret", clock=clock)


def test_the_same_prefix_goes_to_the_same_replica(router: Router) -> None:
    replicas = [FakeDeployment(place) for place in range(3)]
    first = call(*range(40))
    assert router.pick(replicas, first) is replicas[0]
    replicas[0].open_tokens = 10  # new conversations go elsewhere
    other = call(*range(100, 140))
    assert router.pick(replicas, other) is replicas[1]
    again = call(*range(40), 7, 7, 7)
    assert router.pick(replicas, again) is replicas[0]
    assert again.cached_tokens == 40
    decision = again.route.decisions[0]
    assert decision.summary().startswith("m/0 by prefix: 40 of 43 tokens cached, 10 queued; not m/")
    assert len(decision.considered) == 3
    assert router.tracks["m/0"].decisions == 2


@pytest.mark.parametrize(
    ("load", "wait_s"),
    [
        (Load(open=3, slots=4), 0.0),
        (Load(open=4, slots=4), 0.25),
        (Load(open=13, slots=4), 2.5),
        (Load(open=13), 0.0),  # of an upstream
        (Load(open=6, slots=64, running=2, waiting=4), 2.0),  # there are no blocks for more
        (Load(open=0, slots=4, waiting=2), 0.0),  # an old report
    ],
)
def test_a_request_waits_for_a_slot(router: Router, load: Load, wait_s: float) -> None:
    replica = FakeDeployment(0)
    replica.told = load
    assert router.candidate(replica).wait_s == wait_s


def test_how_long_slots_are_taken_is_learnt(router: Router) -> None:
    replica = FakeDeployment(0)
    ended(router, replica, call(*range(8)))  # admitted at 0.1, ended at 1.0
    replica.told = Load(open=4, slots=4)
    assert router.candidate(replica).wait_s == pytest.approx(0.9 / 4)


def test_an_answer_that_waited_for_its_slot_says_nothing_about_the_speed_of_prompts(router: Router) -> None:
    track = router.track("m/0")
    track.observe(100, Timings(0.0, 9.5, 10.0, 11.0))
    assert (track.ttft_s, track.prefill_per_s) == (10.0, None)
    track.observe(100, Timings(0.0, 0.1, 0.5, 1.0))
    assert track.prefill_per_s == pytest.approx(200.0)


def test_tenants_share_no_prefix(router: Router) -> None:
    replicas = [FakeDeployment(place) for place in range(2)]
    router.pick(replicas, call(*range(40)))
    foreign = call(*range(40))
    active = foreign.active_requests[0]
    active.submits = [replace(submit, tenant="t") for submit in active.submits]
    router.pick(replicas, foreign)
    assert foreign.cached_tokens == 0


def test_an_unblocked_replica_is_taken_and_if_there_is_none_any(router: Router) -> None:
    replicas = [FakeDeployment(place, tracked=False) for place in range(2)]
    for _ in range(MIN_FAILURES):
        router.fail("m/0", UpstreamFailed("502"))
    assert router.pick(replicas, call(1)) is replicas[1]
    for _ in range(MIN_FAILURES):
        router.fail("m/1", UpstreamFailed("502"))
    assert router.pick(replicas, call(1)) in replicas


def test_a_stale_load_report_is_noticed(router: Router, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    replicas = [FakeDeployment(place) for place in range(2)]
    replicas[0].open_tokens, replicas[0].reported = 5, clock.now - STALE_LOAD_S - 1
    asked = call(*range(8))
    with caplog.at_level("WARNING"):
        assert router.pick(replicas, asked) is replicas[1]
        router.pick(replicas, call(*range(8)))
    assert asked.route.decisions[0].warnings == ("load of m/0 is 6 s old",)
    assert [record.message for record in caplog.records] == ["routing: load reports of m/0 are stale"]
    replicas[0].reported = clock.now
    router.pick(replicas, call(*range(8)))
    assert not router.tracks["m/0"].stale_load


def test_an_engine_that_was_idle_is_not_stale_when_it_gets_work(router: Router, clock: Clock) -> None:
    replicas = [FakeDeployment(place) for place in range(2)]
    replicas[0].reported = clock.now - 3600.0
    asked = call(*range(8))
    assert router.pick(replicas, asked) is replicas[0]
    replicas[0].open_tokens = 8
    router.begin(Ticket(asked.active_requests, replicas[0]))
    clock.now += 1.0
    assert router.candidate(replicas[0]).load_age_s == pytest.approx(1.0)
    assert not router.candidate(replicas[0]).stale_load
    clock.now += STALE_LOAD_S
    assert router.candidate(replicas[0]).stale_load


def ended(router: Router, deployment: Any, asked: Call, *, cached: int = 0, error: Any = None) -> None:
    ticket = Ticket(asked.active_requests, deployment)
    ticket.call, ticket.error = asked, error
    choice = asked.active_requests[0].choices[0]
    if error is None:
        choice.finish, choice.timings = FinishReason.END, Timings(0.0, 0.1, 0.5, 1.0)
    asked.active_requests[0].cached_tokens = cached
    router.settle(ticket)


def test_predictions_that_fail_are_not_trusted(router: Router) -> None:
    replicas = [FakeDeployment(place) for place in range(2)]
    for _ in range(30):
        asked = call(*range(40))
        chosen = router.pick(replicas, asked)
        ended(router, chosen, asked, cached=0)
        if any(not one.prefixes.trusted for one in replicas if one.prefixes):
            break
    asked = call(*range(40))
    router.pick(replicas, asked)
    assert "are not as expected" in asked.route.decisions[0].warnings[0]


def test_speed_is_learned_from_answers(router: Router) -> None:
    replica = FakeDeployment(0)
    asked = call(*range(100))
    ended(router, replica, asked, cached=0)
    assert router.candidate(replica).prefill_per_s == pytest.approx(200.0)
    upstream = FakeDeployment(1, tracked=False)
    ended(router, upstream, call(*range(100)))
    assert router.candidate(upstream).base_ttft_s == pytest.approx(0.5)


def test_outcomes_reach_the_breaker(router: Router) -> None:
    replica = FakeDeployment(0)
    breaker = router.track("m/0").breaker
    ended(router, replica, call(1), error=QueueFull("full"))
    assert breaker.state is BreakerState.CLOSED
    busy = UpstreamBusy("busy")
    busy.retry_after_s = 3.0
    ended(router, replica, call(1), error=busy)
    assert breaker.state is BreakerState.HELD
    for _ in range(MIN_FAILURES):
        ended(router, replica, call(1), error=UpstreamFailed("502"))
    assert breaker.state is BreakerState.OPEN
    assert router.tracks["m/0"].failures == MIN_FAILURES + 2


def test_a_replica_that_is_not_ready_is_blocked(router: Router) -> None:
    replica = FakeDeployment(0)
    replica.state = State.RESTARTING
    assert router.candidate(replica).blocked == "restarting"


def test_a_removed_model_is_forgotten(router: Router) -> None:
    router.track("m/0")
    router.track("other/0")
    router.forget("m")
    assert list(router.tracks) == ["other/0"]
