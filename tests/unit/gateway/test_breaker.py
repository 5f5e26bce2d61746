"""The circuit breaker and the delays between attempts, under a clock of the test's own."""

from __future__ import annotations

import pytest

from penstock.gateway.backoff import FIRST_DELAY_S, LONGEST_DELAY_S, delay_s
from penstock.gateway.breaker import (
    FIRST_PAUSE_S,
    LONGEST_HOLD_S,
    LONGEST_PAUSE_S,
    MIN_FAILURES,
    WINDOW,
    BreakerState,
    CircuitBreaker,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker(clock)


def opened(breaker: CircuitBreaker) -> CircuitBreaker:
    for _ in range(MIN_FAILURES):
        breaker.begin()
        breaker.fail()
    return breaker


def test_it_opens_after_enough_failures(breaker: CircuitBreaker) -> None:
    for _ in range(MIN_FAILURES - 1):
        breaker.fail()
    assert breaker.state is BreakerState.CLOSED
    assert breaker.blocked is None
    breaker.fail()
    assert breaker.state is BreakerState.OPEN
    assert breaker.blocked == f"circuit open for {FIRST_PAUSE_S:.1f} s"


def test_failures_among_many_successes_do_not_open_it(breaker: CircuitBreaker) -> None:
    for place in range(10 * WINDOW):
        breaker.fail() if place % 3 == 0 else breaker.succeed()
    assert breaker.state is BreakerState.CLOSED


def test_a_success_of_the_probe_closes_it(breaker: CircuitBreaker, clock: Clock) -> None:
    opened(breaker)
    clock.now += FIRST_PAUSE_S
    assert breaker.state is BreakerState.HALF_OPEN
    assert breaker.blocked is None
    breaker.begin()
    assert breaker.blocked is not None, "one probe at a time"
    breaker.succeed()
    assert breaker.state is BreakerState.CLOSED
    breaker.fail()
    assert breaker.state is BreakerState.CLOSED, "earlier failures are forgotten"


def test_a_failed_probe_doubles_the_pause(breaker: CircuitBreaker, clock: Clock) -> None:
    opened(breaker)
    pause = FIRST_PAUSE_S
    for _ in range(10):
        clock.now += pause
        assert breaker.blocked is None
        breaker.begin()
        breaker.fail()
        pause = min(2 * pause, LONGEST_PAUSE_S)
        assert breaker.wait_s == pytest.approx(pause)
        clock.now += pause - 0.1
        assert breaker.state is BreakerState.OPEN
        clock.now -= pause - 0.1
    assert pause == LONGEST_PAUSE_S


def test_a_probe_without_an_outcome_lets_the_next_one_go(breaker: CircuitBreaker, clock: Clock) -> None:
    opened(breaker)
    clock.now += FIRST_PAUSE_S
    breaker.begin()
    breaker.abandon()
    assert breaker.blocked is None


def test_requests_from_before_it_opened_do_not_prolong_the_pause(breaker: CircuitBreaker, clock: Clock) -> None:
    opened(breaker)
    clock.now += FIRST_PAUSE_S / 2
    breaker.fail()
    assert breaker.wait_s == pytest.approx(FIRST_PAUSE_S / 2)


def test_a_pause_that_was_asked_for_is_no_failure(breaker: CircuitBreaker, clock: Clock) -> None:
    for _ in range(2 * MIN_FAILURES):
        breaker.hold(3.0)
    assert breaker.state is BreakerState.HELD
    assert breaker.blocked == "asked for a pause of 3.0 s"
    clock.now += 3.0
    assert breaker.state is BreakerState.CLOSED


def test_a_probe_that_is_asked_for_a_pause_is_not_repeated_before_it_is_over(
    breaker: CircuitBreaker, clock: Clock
) -> None:
    opened(breaker)
    clock.now += FIRST_PAUSE_S
    breaker.begin()
    breaker.hold(30.0)
    assert breaker.blocked == "asked for a pause of 30.0 s"
    clock.now += 30.0
    assert (breaker.state, breaker.blocked) == (BreakerState.HALF_OPEN, None)
    breaker.begin()
    breaker.succeed()
    assert breaker.state is BreakerState.CLOSED


def test_an_absurd_pause_is_not_believed(breaker: CircuitBreaker) -> None:
    breaker.hold(1e9)
    assert breaker.wait_s == LONGEST_HOLD_S


def test_delays_double_are_bounded_and_drawn() -> None:
    longest = [delay_s(rounds, draw=lambda: 1.0) for rounds in range(1, 9)]
    assert longest[:3] == [FIRST_DELAY_S, 2 * FIRST_DELAY_S, 4 * FIRST_DELAY_S]
    assert longest[-1] == LONGEST_DELAY_S
    assert delay_s(3, draw=lambda: 0.0) == 0.0
    assert delay_s(3, draw=lambda: 0.5) == 2 * FIRST_DELAY_S


def test_retry_after_is_the_least_delay() -> None:
    assert delay_s(1, 5.0, draw=lambda: 1.0) == 5.0
    assert delay_s(6, 0.1, draw=lambda: 1.0) == LONGEST_DELAY_S
