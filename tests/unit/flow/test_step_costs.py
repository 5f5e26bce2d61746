"""The curve of step costs."""

import pytest

from penstock.flow.step_costs import StepCosts


def test_costs_lie_on_lines_between_measurements() -> None:
    costs = StepCosts({4: 2.5, 1: 1.0, 2: 1.5})
    assert [costs.seconds(tokens) for tokens in range(1, 7)] == [1.0, 1.5, 2.0, 2.5, 3.0, 3.5]


def test_no_step_is_dearer_than_a_larger_one() -> None:
    costs = StepCosts({1: 1.0, 2: 5.0, 3: 1.2, 5: 1.4})
    assert costs.seconds(2) == 1.2, "the machine was busy, or a third token fills a tile"
    assert costs.added(2, 1) == 0.0
    falling = StepCosts({1: 3.0, 2: 1.0, 4: 1.2})
    assert falling.seconds(1) == falling.seconds(2) == 1.0
    assert falling.seconds(8) > falling.seconds(4), "beyond what was measured more tokens are never free"


def test_what_drafts_add() -> None:
    linear = StepCosts({1: 1.0, 2: 2.0})
    assert linear.added(1, 1) == 1.0
    assert linear.added(8, 1) == 1 / 8
    assert StepCosts({1: 1.0, 2: 1.1}).added(4, 2) == pytest.approx(0.2 / 1.3)


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
    assert costs.scale == pytest.approx(1.8, abs=0.15)
    assert costs.added(1, 1) == pytest.approx(0.36, abs=0.03)
    costs.observe(1, 1, 1000.0)  # something else had the machine
    assert costs.scale < 2.2


def test_noise_does_not_make_cheap_drafts_dear() -> None:
    """Where a draft costs next to nothing, every fluctuation is a multiple of it."""
    costs = StepCosts({1: 1.0, 2: 1.01})
    for _ in range(100):
        costs.observe(1, 0, 1.0)
        costs.observe(1, 1, 1.04)
    assert costs.scale < 2.0


def test_a_price_that_was_too_high_is_tried_again() -> None:
    costs = StepCosts({1: 1.0, 2: 1.5})
    costs.observe(1, 0, 1.0)
    for _ in range(100):
        costs.observe(1, 1, 9.0)
    assert costs.added(1, 1) > 1.0, "nothing is drafted at this price"
    for _ in range(1000):
        costs.observe(1, 0, 1.0)
    assert costs.added(1, 1) < 0.6


def test_what_waiting_adds() -> None:
    """The host's work between two steps, where the next one could not be planned ahead."""
    costs = StepCosts({1: 0.004, 8: 0.005})
    assert costs.waiting(1) == 0.0
    costs.plan_ahead()
    assert 0.0 < costs.waiting(8) < costs.waiting(1) < 0.5, "before it is measured"
    for _ in range(200):
        costs.observe(1, 0, 0.004, ahead=True)
        costs.observe(1, 0, 0.0052)
        costs.observe(1, 4, 0.0056)
    assert costs.waiting(1) == pytest.approx(0.3, abs=0.02)
    assert costs.added(1, 4) < 0.2, "it is no price of drafts"


def test_what_a_proposer_takes() -> None:
    costs = StepCosts({1: 1.0, 8: 1.7}, draft_s=0.25)
    assert costs.added(1, 2) == pytest.approx(0.7)
    assert costs.added(4, 4) == pytest.approx((0.4 + 0.25) / 1.3), "a draft of all rows at a time"
