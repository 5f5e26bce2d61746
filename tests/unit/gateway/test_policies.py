"""Routing policies and decisions over snapshots."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.deployment.protocol import Price
from penstock.gateway.candidate import STALE_LOAD_S, Candidate, Demand
from penstock.gateway.decision import decide
from penstock.gateway.policies import POLICIES

DEMAND = Demand(prompt_tokens=1000, max_output=100)


def candidate(name: str, **fields: Any) -> Candidate:
    return Candidate(name=name, model="m", **fields)


def chosen(policy: str, *candidates: Candidate, demand: Demand = DEMAND) -> str | None:
    return decide(demand, candidates, policy).chosen


def test_load_takes_the_fewest_queued_tokens() -> None:
    assert chosen("load", candidate("a", queued_tokens=10), candidate("b", queued_tokens=9)) == "b"


def test_ties_keep_the_order() -> None:
    for policy in POLICIES:
        assert chosen(policy, candidate("a"), candidate("b")) == "a"


def test_prefix_prefers_the_longer_cached_prefix() -> None:
    a, b = candidate("a", cached_tokens=0), candidate("b", cached_tokens=512, queued_tokens=500)
    assert chosen("prefix", a, b) == "b"


def test_prefix_leaves_a_replica_whose_queue_costs_more_than_the_prefix_saves() -> None:
    a, b = candidate("a"), candidate("b", cached_tokens=512, queued_tokens=2000)
    assert chosen("prefix", a, b) == "a"


def test_prefix_divides_the_work_of_idle_replicas() -> None:
    """Both are idle, and one has the system prompt: without a balance it would get everything."""
    a = candidate("a", cached_tokens=64, recent_tokens=50_000.0)
    assert chosen("prefix", a, candidate("b", recent_tokens=10_000.0)) == "b"
    even = candidate("a", cached_tokens=64, recent_tokens=10_500.0)
    assert chosen("prefix", even, candidate("b", recent_tokens=10_000.0)) == "a"


def test_a_replica_whose_slots_are_taken_leaves_work_to_others() -> None:
    """Short prompts of one beginning: what is cached saves less than the wait costs."""
    full = candidate("a", cached_tokens=512, wait_s=2.0)
    idle = candidate("b", cached_tokens=0)
    assert chosen("prefix", full, idle) == "b"
    assert chosen("load", full, idle) == "b"
    assert chosen("ttft", full, idle) == "b"
    slow = {"prefill_per_s": 100.0}  # there it is worth the wait
    assert chosen("prefix", candidate("a", cached_tokens=512, wait_s=2.0, **slow), candidate("b", **slow)) == "a"
    decision = decide(DEMAND, [full, idle], "prefix")
    assert "a: 512 of 1000 tokens cached, 0 queued, 2 s for a slot" in decision.summary()


def test_ttft_takes_the_cheapest_that_meets_the_target_else_the_fastest() -> None:
    fast = candidate("fast", prefill_per_s=10_000.0, price=Price(input=10.0, output=10.0))
    cheap = candidate("cheap", prefill_per_s=2_000.0, price=Price(input=1.0, output=1.0))
    slow = candidate("slow", prefill_per_s=100.0)
    for target, expected in ((1.0, "cheap"), (0.2, "fast"), (0.01, "fast"), (None, "fast")):
        demand = Demand(prompt_tokens=1000, ttft_target_s=target)
        assert chosen("ttft", cheap, fast, slow, demand=demand) == expected, target


def test_ttft_counts_what_is_queued_and_cached() -> None:
    rate = {"prefill_per_s": 1000.0}
    assert candidate("a", queued_tokens=500, cached_tokens=600, **rate).ttft_s(DEMAND) == pytest.approx(0.9)
    assert candidate("b", base_ttft_s=0.25, **rate).ttft_s(DEMAND) == pytest.approx(1.25)


def test_cost_counts_cached_input_at_its_own_price() -> None:
    price = Price(input=2.0, output=10.0, cached_input=0.5)
    assert candidate("a", price=price, cached_tokens=400).cost(DEMAND) * 1e6 == pytest.approx(
        600 * 2.0 + 400 * 0.5 + 100 * 10.0
    )
    assert candidate("a", price=Price(input=2.0), cached_tokens=400).cost(DEMAND) * 1e6 == pytest.approx(2000.0)
    assert chosen("cost", candidate("a", price=price), candidate("b", price=Price(input=1.0, output=1.0))) == "b"


def test_a_blocked_candidate_is_not_ranked_and_its_reason_is_recorded() -> None:
    decision = decide(DEMAND, [candidate("a", blocked="restarting"), candidate("b", queued_tokens=9)], "load")
    assert decision.chosen == "b"
    assert [(one.name, one.chosen, one.reason) for one in decision.considered] == [
        ("b", True, "9 tokens queued"),
        ("a", False, "restarting"),
    ]
    assert decision.summary() == "b by load: 9 tokens queued; not a: restarting"


def test_without_an_available_candidate_there_is_no_choice() -> None:
    decision = decide(DEMAND, [candidate("a", blocked="circuit open")], "load")
    assert decision.chosen is None
    assert decision.summary() == "none by load; not a: circuit open"


def test_a_region_is_preferred_but_not_required() -> None:
    here, there = candidate("here", region="eu", queued_tokens=99), candidate("there", region="us")
    demand = Demand(prompt_tokens=10, region="eu")
    assert chosen("load", here, there, demand=demand) == "here"
    assert chosen("load", there, demand=demand) == "there"


def test_a_stale_load_is_said_and_ranks_last() -> None:
    stale = candidate("a", busy=True, load_age_s=STALE_LOAD_S + 2)
    decision = decide(DEMAND, [stale, candidate("b", queued_tokens=500, busy=True, load_age_s=0.1)], "load")
    assert decision.chosen == "b"
    assert decision.warnings == ("load of a is 7 s old",)
    idle = candidate("a", busy=False, load_age_s=3600.0)  # an idle engine has nothing to report
    assert decide(DEMAND, [idle], "load").warnings == ()


def test_an_untrusted_prefix_is_said_and_not_counted() -> None:
    a = candidate("a", cached_tokens=1000, prefix_trusted=False)
    decision = decide(DEMAND, [a, candidate("b", cached_tokens=16)], "prefix")
    assert decision.chosen == "b"
    assert decision.warnings == ("cached prefixes of a are not as expected",)
