from __future__ import annotations

import pytest

from penstock.gateway.limits.headers import duration, rate_limit_headers, tightest
from penstock.gateway.limits.reservation import RateLimitState


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0ms"), (1, "1ms"), (20_000, "20ms"), (999_001, "1s"), (1_000_000, "1s"), (1_250_000, "1.25s"),
        (59_999_999, "1m0s"), (360_000_000, "6m0s"), (3_600_000_000, "1h0m0s"), (93_784_500_000, "26h3m4.5s"),
    ],
)  # fmt: skip
def test_durations_are_those_of_openai(us: int, text: str) -> None:
    assert duration(us) == text


def test_only_limits_that_exist_have_headers() -> None:
    assert rate_limit_headers(None, None) == {}
    assert rate_limit_headers(None, RateLimitState(100, 40, 30_000_000)) == {
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "40",
        "x-ratelimit-reset-tokens": "30s",
    }


def test_the_limit_with_the_least_left_is_shown() -> None:
    key, tenant = RateLimitState(100, 40, 0), RateLimitState(1000, 30, 0)
    assert tightest([key, tenant]) is tenant
    assert tightest([None, key]) is key
    assert tightest([None, None]) is None
