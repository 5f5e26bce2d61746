"""Figures made from steps, and what is computed from them."""

import pytest

from helpers.journal_driver import JournalDriver
from penstock.flow.record import Finding
from penstock.observe import replay
from penstock.observe.measured import Cost, figures, fit, percentile, recent
from penstock.observe.replay import Job


def test_the_cost_of_a_step_is_found_again() -> None:
    watched = JournalDriver()
    for name in "abcd":
        watched.accept(name)
    for count in (40, 80, 300, 20, 77):
        watched.step({"a": count}, seconds=0.010 + count * 0.0005, let_in={"a": Finding()})
    for place in range(40):
        batch = "abcd"[: 1 + place % 4]
        watched.step(dict.fromkeys(batch, 1), seconds=0.010 + 0.002 * len(batch))
    cost = fit(recent(watched.journal))
    assert cost is not None
    assert cost.fixed_us == pytest.approx(10_000, rel=0.02)
    assert cost.decode_row_us == pytest.approx(2_000, rel=0.02)
    assert cost.prefill_token_us == pytest.approx(500, rel=0.02)
    told = figures(watched.journal)
    assert [entry["batch"] for entry in told["decode_by_batch"]] == [1, 2, 3, 4]
    assert told["decode_tokens_per_s"] == pytest.approx(1 / 0.012, rel=0.01)
    assert told["tokens_per_s_peak"] == pytest.approx(4 / 0.018, rel=0.01)
    assert told["prefill_tokens_per_s"] == pytest.approx(517 / (0.05 + 517 * 0.0005), rel=0.01)


def test_too_few_steps_tell_nothing() -> None:
    watched = JournalDriver()
    told = figures(watched.journal)
    assert told["step_cost"] is told["decode_tokens_per_s"] is told["prefill_tokens_per_s"] is None
    watched.serve("a")
    assert figures(watched.journal)["step_cost"] is None


@pytest.mark.parametrize(("share", "expected"), [(0.5, 5), (0.95, 10), (0.1, 1), (1.0, 10)])
def test_percentiles_are_values_that_were_there(share: float, expected: float) -> None:
    assert percentile([float(value) for value in range(1, 11)], share) == expected
    assert percentile([], share) is None


COST = Cost(fixed_us=1000.0, decode_row_us=100.0, prefill_token_us=10.0)


def jobs(*lengths: int, apart_us: float = 0.0) -> list[Job]:
    return [Job(place + 1, place, place * apart_us, 100, 0, length) for place, length in enumerate(lengths)]


def test_static_batching_waits_for_the_longest() -> None:
    """By hand: one step for both prompts, then as many as the longest has tokens left, all with two lanes."""
    told = replay.static(jobs(2, 10), 2, COST)
    first = 1000 + 200 * 10
    assert told["makespan_us"] == first + 9 * 1200
    short, long = told["rows"]
    assert short["end"] == first + 1200
    assert short["released"] == long["released"] == told["makespan_us"]
    assert told["utilisation"] < 1


def test_continuous_batching_gives_the_lane_to_the_next() -> None:
    """By hand: the third takes the first one's lane while the second still runs."""
    told = replay.continuous(jobs(1, 4, 2), 2, COST)
    first, second, third = told["rows"]
    assert first["lane"] == third["lane"] != second["lane"]
    assert third["start"] == first["end"] == 3000
    assert told["makespan_us"] == 3000 + (1000 + 100 + 1000) + (1000 + 200) + (1000 + 100)
    assert told["utilisation"] == 1.0


def test_the_gain_shows_where_lengths_differ_and_nowhere_else() -> None:
    uneven, even = jobs(*[4, 64] * 16), jobs(*[32] * 32)
    assert replay.continuous(uneven, 8, COST)["makespan_us"] < 0.7 * replay.static(uneven, 8, COST)["makespan_us"]
    assert replay.continuous(even, 8, COST)["makespan_us"] == pytest.approx(
        replay.static(even, 8, COST)["makespan_us"], rel=0.01
    )
    for told in (replay.static(uneven, 8, COST), replay.continuous(uneven, 8, COST)):
        assert sorted(row["seq"] for row in told["rows"]) == list(range(1, 33))
        for row in told["rows"]:
            assert row["start"] < row["prefill_end"] <= row["end"] <= row["released"]


def test_nobody_starts_before_they_came() -> None:
    late = jobs(3, 3, 3, apart_us=1e6)
    for told in (replay.static(late, 2, COST), replay.continuous(late, 2, COST)):
        assert [row["start"] for row in told["rows"]] == [0, 1_000_000, 2_000_000]
