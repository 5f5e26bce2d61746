from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from penstock.errors import RateLimited
from penstock.gateway.keys.identity import Identity, Limits
from penstock.gateway.limits.local_limiter import LocalLimiter
from penstock.gateway.limits.metrics import LimitsCollector
from penstock.gateway.limits.reservation import Charge


def test_a_scrape_shows_what_was_reserved_settled_and_rejected_by_which_limit() -> None:
    limiter, registry = LocalLimiter(), CollectorRegistry()
    registry.register(LimitsCollector(limiter))
    identity = Identity(tenant="t", key="secret", key_limits=Limits(tokens_per_minute=100))

    async def requests() -> None:
        reservation = await limiter.reserve(identity, "r", Charge(100, 7))
        with pytest.raises(RateLimited):
            await limiter.reserve(identity, "r", Charge(1))
        await limiter.settle(reservation, Charge(40, 3))

    asyncio.run(requests())
    text = generate_latest(registry).decode()
    for line in (
        "penstock_limits_reservations_total 1.0",
        "penstock_limits_settlements_total 1.0",
        "penstock_limits_reserved_tokens_total 100.0",
        "penstock_limits_settled_tokens_total 40.0",
        "penstock_limits_reserved_microusd_total 7.0",
        "penstock_limits_settled_microusd_total 3.0",
        'penstock_limits_rejected_total{limit="tokens_per_minute",owner="key"} 1.0',
        "penstock_limits_available 1.0",
    ):
        assert f"\n{line}\n" in text
    assert "secret" not in text
