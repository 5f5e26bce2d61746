"""Figures and step costs, measured from the steps of an engine."""

import pytest

from helpers.journal_driver import JournalDriver
from penstock.flow.record import Finding
from penstock.observe.performance import fit_step_cost, percentile, performance_figures, recent_steps


def test_the_cost_of_a_step_is_found_again() -> None:
    watched = JournalDriver()
    for name in "abcd":
        watched.accept(name)
    for count in (40, 80, 300, 20, 77):
        watched.step({"a": count}, seconds=0.010 + count * 0.0005, admissions={"a": Finding()})
    for place in range(40):
        batch = "abcd"[: 1 + place % 4]
        watched.step(dict.fromkeys(batch, 1), seconds=0.010 + 0.002 * len(batch))
    cost = fit_step_cost(recent_steps(watched.journal))
    assert cost is not None
    assert cost.fixed_us == pytest.approx(10_000, rel=0.02)
    assert cost.decode_row_us == pytest.approx(2_000, rel=0.02)
    assert cost.prefill_token_us == pytest.approx(500, rel=0.02)
    told = performance_figures(watched.journal)
    assert [entry["batch"] for entry in told["decode_by_batch"]] == [1, 2, 3, 4]
    assert told["decode_tokens_per_s"] == pytest.approx(1 / 0.012, rel=0.01)
    assert told["tokens_per_s_peak"] == pytest.approx(4 / 0.018, rel=0.01)
    assert told["prefill_tokens_per_s"] == pytest.approx(517 / (0.05 + 517 * 0.0005), rel=0.01)


def test_too_few_steps_tell_nothing() -> None:
    watched = JournalDriver()
    told = performance_figures(watched.journal)
    assert told["step_cost"] is told["decode_tokens_per_s"] is told["prefill_tokens_per_s"] is None
    watched.serve("a")
    assert performance_figures(watched.journal)["step_cost"] is None


@pytest.mark.parametrize(("share", "expected"), [(0.5, 5), (0.95, 10), (0.1, 1), (1.0, 10)])
def test_percentiles_are_values_that_were_there(share: float, expected: float) -> None:
    assert percentile([float(value) for value in range(1, 11)], share) == expected
    assert percentile([], share) is None
