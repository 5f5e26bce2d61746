"""The curve of step costs."""

import pytest

from penstock.flow.step_costs import StepCosts


def test_costs_lie_on_lines_between_measurements() -> None:
    costs = StepCosts({4: 2.5, 1: 1.0, 2: 1.5})
    assert [costs.seconds(tokens) for tokens in range(1, 7)] == [1.0, 1.5, 2.0, 2.5, 3.0, 3.5]


def test_a_busy_machine_makes_single_measurements_too_high() -> None:
    costs = StepCosts({1: 1.0, 2: 5.0, 3: 1.2, 5: 1.4})
    assert costs.seconds(2) == pytest.approx(1.1)
    falling = StepCosts({1: 3.0, 2: 1.0, 4: 1.2})
    assert falling.seconds(2) > falling.seconds(1), "more tokens are never free"


def test_the_price_of_a_draft() -> None:
    """In units of the time per token: a row of a full batch has its share of the step."""
    linear = StepCosts({1: 1.0, 2: 2.0})
    assert linear.draft_price(1) == linear.draft_price(8) == 1.0
    flat = StepCosts({1: 1.0, 2: 1.1})
    assert flat.draft_price(1) == pytest.approx(0.1)
    assert flat.draft_price(4) == pytest.approx(0.1 * 4 / 1.3)


def test_steps_that_take_longer_correct_the_price() -> None:
    costs = StepCosts({1: 1.0, 2: 1.2})
    for _ in range(100):
        costs.observe(1, 0, 0.5)  # a faster machine: drafts cost their share of that
        costs.observe(1, 2, 0.7)
    assert costs.scale == pytest.approx(1.0, abs=0.02)
    costs = StepCosts({1: 1.0, 2: 1.2})
    for _ in range(100):
        costs.observe(1, 0, 1.0)
        costs.observe(1, 1, 1.4)
    assert costs.scale == pytest.approx(2.0, abs=0.15)
    assert costs.draft_price(1) == pytest.approx(0.4, abs=0.03)
    assert costs.added(1, 1) == pytest.approx(0.4, abs=0.03)
    costs.observe(1, 1, 1000.0)  # something else had the machine
    assert costs.scale < 2.2


def test_a_price_that_was_too_high_is_tried_again() -> None:
    costs = StepCosts({1: 1.0, 2: 1.5})
    costs.observe(1, 0, 1.0)
    for _ in range(100):
        costs.observe(1, 1, 9.0)
    assert costs.draft_price(1) > 1.0, "nothing is drafted at this price"
    for _ in range(1000):
        costs.observe(1, 0, 1.0)
    assert costs.draft_price(1) < 0.6
