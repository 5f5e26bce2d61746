"""The cost of a request in whole micro-dollars, rounded up once over the whole request.

A price is in USD per million tokens, which is micro-dollars per token. Rates are integers, so that sums are exact.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from penstock.deployment.protocol import Price

PARTS = 1_000_000  # of a micro-dollar: the smallest difference between two prices is a millionth of a dollar


class Rates(NamedTuple):
    """Millionths of a micro-dollar per token."""

    input: int
    cached: int
    output: int


@lru_cache(maxsize=1024)
def rates(price: Price) -> Rates:
    cached = price.input if price.cached_input is None else price.cached_input
    return Rates(*(round(dollars * PARTS) for dollars in (price.input, cached, price.output)))


def microusd(price: Price | None, *, input_tokens: int, cached_tokens: int = 0, output_tokens: int = 0) -> int:
    """`input_tokens` include cached ones. A model without a price costs nothing."""
    if price is None:
        return 0
    rate = rates(price)
    parts = (input_tokens - cached_tokens) * rate.input + cached_tokens * rate.cached + output_tokens * rate.output
    return -(-parts // PARTS)


def saved_microusd(price: Price | None, cached_tokens: int) -> int:
    """What the prefix cache saves the client, rounded down; negative if cached input has the higher price."""
    if price is None:
        return 0
    rate = rates(price)
    return cached_tokens * (rate.input - rate.cached) // PARTS
