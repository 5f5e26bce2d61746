"""Recorded requests under static and under continuous batching."""

import pytest

from penstock.observe.batching_replay import ReplayedSequence, continuous_batching, static_batching
from penstock.observe.performance import StepCost

COST = StepCost(fixed_us=1000.0, decode_row_us=100.0, prefill_token_us=10.0)


def jobs(*lengths: int, apart_us: float = 0.0) -> list[ReplayedSequence]:
    return [
        ReplayedSequence(place + 1, place, place * apart_us, 100, 0, length) for place, length in enumerate(lengths)
    ]


def test_static_batching_waits_for_the_longest() -> None:
    """By hand: one step for both prompts, then as many as the longest has tokens left, all with two lanes."""
    told = static_batching(jobs(2, 10), 2, COST)
    first = 1000 + 200 * 10
    assert told["makespan_us"] == first + 9 * 1200
    short, long = told["rows"]
    assert short["end"] == first + 1200
    assert short["released"] == long["released"] == told["makespan_us"]
    assert told["utilisation"] < 1


def test_continuous_batching_gives_the_lane_to_the_next() -> None:
    """By hand: the third takes the first one's lane while the second still runs."""
    told = continuous_batching(jobs(1, 4, 2), 2, COST)
    first, second, third = told["rows"]
    assert first["lane"] == third["lane"] != second["lane"]
    assert third["start"] == first["end"] == 3000
    assert told["makespan_us"] == 3000 + (1000 + 100 + 1000) + (1000 + 200) + (1000 + 100)
    assert told["utilisation"] == 1.0


def test_the_gain_shows_where_lengths_differ_and_nowhere_else() -> None:
    uneven, even = jobs(*[4, 64] * 16), jobs(*[32] * 32)
    assert continuous_batching(uneven, 8, COST)["makespan_us"] < 0.7 * static_batching(uneven, 8, COST)["makespan_us"]
    assert continuous_batching(even, 8, COST)["makespan_us"] == pytest.approx(
        static_batching(even, 8, COST)["makespan_us"], rel=0.01
    )
    for told in (
        static_batching(uneven, 8, COST),
        continuous_batching(uneven, 8, COST),
    ):
        assert sorted(row["seq"] for row in told["rows"]) == list(range(1, 33))
        for row in told["rows"]:
            assert row["start"] < row["prefill_end"] <= row["end"] <= row["released"]


def test_nobody_starts_before_they_came() -> None:
    late = jobs(3, 3, 3, apart_us=1e6)
    for told in (static_batching(late, 2, COST), continuous_batching(late, 2, COST)):
        assert [row["start"] for row in told["rows"]] == [0, 1_000_000, 2_000_000]
