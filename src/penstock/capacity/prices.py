"""The same load at the prices of an API, per million tokens, beside devices that are paid by the hour."""

from __future__ import annotations

from penstock.capacity.answer import Prices
from penstock.capacity.question import Question

HOUR_S = 3600
MILLION = 1e6


def at_prices(asked: Question, replica_per_s: float | None, devices: int | None) -> Prices | None:
    """`replica_per_s`: requests per second of one full replica; None: nothing fits. `devices`: that the request rate
    needs; None: no rate is given, or nothing fits. None if no price is given."""
    if asked.input_price is None and asked.output_price is None:
        return None
    input_price, output_price = asked.input_price or 0.0, asked.output_price or 0.0
    per_request = (asked.prompt_tokens * input_price + asked.output_tokens * output_price) / MILLION
    break_even = None
    if asked.hour_price is not None and per_request > 0:
        break_even = asked.hour_price * asked.tensor_parallel / HOUR_S / per_request
    own_per_hour = None if asked.hour_price is None or devices is None else asked.hour_price * devices
    return Prices(
        input_price=input_price,
        output_price=output_price,
        per_request=per_request,
        blended_per_million=per_request / (asked.prompt_tokens + asked.output_tokens) * MILLION,
        per_hour=None if asked.rate is None else asked.rate * HOUR_S * per_request,
        own_per_hour=own_per_hour,
        break_even_rate=break_even,
        break_even_utilisation=None if break_even is None or replica_per_s is None else break_even / replica_per_s,
    )
