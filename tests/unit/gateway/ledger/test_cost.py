"""Cost in whole micro-dollars."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from penstock.deployment.protocol import Price
from penstock.gateway.ledger.cost import microusd, saved_microusd

PRICE = Price(0.15, 0.6, 0.075)


def test_each_kind_of_token_has_its_price() -> None:
    assert microusd(PRICE, input_tokens=1000, cached_tokens=400, output_tokens=100) == 90 + 30 + 60


def test_the_sum_is_rounded_up_once() -> None:
    assert microusd(PRICE, input_tokens=1) == 1  # 0.15
    assert microusd(PRICE, input_tokens=1, output_tokens=1) == 1  # 0.75, not 1 + 1
    assert microusd(Price(0.1, 0.2), input_tokens=10) == 1  # floats would say 1.0000000000000002


def test_cached_input_without_a_price_of_its_own_costs_as_much_as_other_input() -> None:
    price = Price(2.0, 8.0)
    assert microusd(price, input_tokens=10, cached_tokens=10) == microusd(price, input_tokens=10)
    assert saved_microusd(price, 10) == 0


def test_a_cached_prompt_can_be_free() -> None:
    assert microusd(Price(2.0, 8.0, 0.0), input_tokens=10, cached_tokens=10) == 0
    assert saved_microusd(Price(2.0, 8.0, 0.0), 10) == 20


def test_no_price_costs_nothing() -> None:
    assert microusd(None, input_tokens=10, output_tokens=10) == 0


cents = st.integers(0, 10**8).map(lambda value: value / 10**6)
counts = st.integers(0, 10**7)


@given(cents, cents, cents, counts, counts, counts)
def test_it_is_exact(given_input: float, output: float, cached: float, computed: int, hit: int, written: int) -> None:
    def exact(dollars: float) -> Fraction:
        return Fraction(f"{dollars:.6f}")

    expected = math.ceil(computed * exact(given_input) + hit * exact(cached) + written * exact(output))
    price = Price(given_input, output, cached)
    assert microusd(price, input_tokens=computed + hit, cached_tokens=hit, output_tokens=written) == expected
