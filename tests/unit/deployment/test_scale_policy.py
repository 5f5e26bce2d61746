"""Decisions about the number of replicas, by the clock of the test."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.deployment.scale_policy import (
    HEADROOM,
    LoadSnapshot,
    ScaleDecision,
    ScaleLimits,
    ScaleState,
    decide,
    demand,
)

LIMITS = ScaleLimits(1, 4, up_s=3.0, down_s=60.0)
FULL = 4000  # prompt tokens that fill one replica: 2000 per second for the default target of 2 s


class Model:
    """Follows every decision at once."""

    def __init__(self, replicas: int = 1, limits: ScaleLimits = LIMITS) -> None:
        self.now, self.replicas, self.limits = 0.0, replicas, limits
        self.state = ScaleState()
        self.decisions: list[tuple[float, int]] = []
        self.reasons: list[str] = []

    def pass_time(self, seconds: float, **load: Any) -> None:
        until = self.now + seconds
        while self.now < until:
            self.look(**load)
            self.now += 0.5

    def look(self, **load: Any) -> ScaleDecision | None:
        snapshot = LoadSnapshot(now=self.now, replicas=self.replicas, slots=64, **load)
        self.state, decision = decide(self.limits, self.state, snapshot)
        if decision is not None:
            self.replicas = decision.target
            self.decisions.append((self.now, decision.target))
            self.reasons.append(decision.reason)
        return decision


def test_demand_is_what_the_load_would_fill() -> None:
    assert demand(LoadSnapshot(now=0, replicas=1)) == 0
    assert demand(LoadSnapshot(now=0, replicas=1, queued_tokens=6 * FULL)) == 6
    assert demand(LoadSnapshot(now=0, replicas=1, queued_tokens=FULL, ttft_target_s=0.5)) == 4
    assert demand(LoadSnapshot(now=0, replicas=1, queued_tokens=FULL, prompt_tokens_per_s=500)) == 4
    assert demand(LoadSnapshot(now=0, replicas=1, open=96, slots=64)) == 1.5


def test_load_that_lasts_adds_what_it_fills() -> None:
    model = Model()
    model.pass_time(10, queued_tokens=int(2.5 * FULL))
    assert model.decisions == [(3.0, 3)]
    assert model.reasons == ["10000 prompt tokens wait and 0 sequences are open: work for 2.50 replicas"]


def test_a_short_peak_changes_nothing() -> None:
    model = Model()
    for _ in range(5):
        model.pass_time(2.5, queued_tokens=8 * FULL)
        model.pass_time(0.5)
    assert not model.decisions


def test_there_are_never_more_than_the_most() -> None:
    model = Model()
    model.pass_time(100, queued_tokens=100 * FULL)
    assert model.decisions == [(3.0, 4)]


def test_idle_replicas_go_one_by_one_but_the_last() -> None:
    model = Model(4)
    model.pass_time(400)
    assert model.decisions == [(60.0, 3), (120.5, 2), (181.0, 1)]


def test_load_between_the_bounds_keeps_the_number() -> None:
    """Else replicas would come and go with every ripple: those that remain must have room to spare."""
    model = Model(3)
    model.pass_time(1000, queued_tokens=int((2 * HEADROOM + 0.05) * FULL))
    assert not model.decisions
    model.pass_time(100, queued_tokens=int((2 * HEADROOM - 0.05) * FULL))
    assert model.replicas == 2


def test_a_missed_slo_adds_one_per_window_and_removes_none() -> None:
    model = Model(2)
    model.pass_time(299, missed_slo="ttft_p95", open=5)
    assert model.decisions == [(0.0, 3)]
    model.pass_time(2, missed_slo="ttft_p95", open=5)
    assert model.decisions[1:] == [(300.0, 4)]
    assert model.reasons[0] == "the SLO ttft_p95 is missed"
    model.pass_time(500, missed_slo="ttft_p95", open=1)
    assert model.replicas == 4


def test_a_missed_slo_of_another_model_adds_none() -> None:
    model = Model(2)
    model.pass_time(50, missed_slo="ttft_p95", open=0)
    assert model.replicas == 2


@pytest.mark.parametrize(("replicas", "target"), [(1, 2), (7, 5)])
def test_a_number_out_of_bounds_is_mended_at_once(replicas: int, target: int) -> None:
    model = Model(replicas, ScaleLimits(2, 5))
    decision = model.look()
    assert decision is not None
    assert decision.target == target


def test_the_last_replica_stays_where_the_least_is_none() -> None:
    """It goes when the model has been idle: that is `deployment.residency`."""
    model = Model(2, ScaleLimits(0, 5))
    model.pass_time(1000)
    assert model.replicas == 1


@given(
    loads=st.lists(st.tuples(st.integers(0, 10 * FULL), st.integers(0, 500), st.booleans()), max_size=60),
    least=st.integers(0, 3),
    room=st.integers(0, 4),
)
def test_any_load_keeps_within_the_limits(loads: list[tuple[int, int, bool]], least: int, room: int) -> None:
    limits = ScaleLimits(least, max(least + room, 1), up_s=1.0, down_s=2.0)
    model = Model(max(least, 1), limits)
    for tokens, open_sequences, missed in loads:
        model.pass_time(1.5, queued_tokens=tokens, open=open_sequences, missed_slo="ttft_p95" if missed else None)
        assert max(limits.least, 1) <= model.replicas <= limits.most
