"""Totals for Prometheus: bounded, and what a scrape makes of them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from helpers.usage_records import record
from penstock.gateway.accounting import Accounting
from penstock.gateway.ledger.metrics import UsageCollector
from penstock.gateway.ledger.totals import OTHER, UsageTotals


def test_labels_are_bounded() -> None:
    totals = UsageTotals(max_labels=2)
    for number in range(5):
        totals.add(record(f"r{number}", tenant=f"t{number}"))
    totals.add(record("again", tenant="t0"))
    assert totals.requests == {("t0", "m"): 2, ("t1", "m"): 1, (OTHER, "m"): 3}
    assert totals.microusd[OTHER, "m"] == 21


def test_a_scrape() -> None:
    accounting = Accounting()
    accounting.totals.add(record("a", microusd=1_500_000))
    registry = CollectorRegistry()
    registry.register(UsageCollector(accounting))
    text = generate_latest(registry).decode()
    assert 'penstock_usage_cost_usd_total{model="m",tenant="acme"} 1.5' in text
    assert 'penstock_usage_tokens_total{kind="cached",model="m",tenant="acme"} 4.0' in text
    assert 'penstock_usage_cache_savings_usd_total{model="m",tenant="acme"} 2e-06' in text
