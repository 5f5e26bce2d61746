"""Spend against its own past, and the alert that says so."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.journal_driver import JournalDriver
from penstock.observe import events
from penstock.observe.history import History
from penstock.observe.slo import spend
from penstock.observe.slo.monitor import SloMonitor
from penstock.observe.slo.spend import OTHER, SpendRates
from penstock.settings import ObserveSettings

WINDOW_S = 300.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_794_484_800.0

    def __call__(self) -> float:
        return self.now

    def pass_minutes(self, rates: SpendRates, minutes: int, **microusd: int) -> None:
        for _ in range(minutes):
            for tenant, amount in microusd.items():
                rates.add(tenant, amount)
            self.now += 60


def test_a_spike_is_measured_against_the_tenant_s_own_mean() -> None:
    clock = Clock()
    rates = SpendRates(clock)
    clock.pass_minutes(rates, 60, acme=10_000, beta=1_000_000)
    clock.pass_minutes(rates, 5, acme=100_000, beta=1_000_000)
    clock.now -= 60
    found = rates.spike(WINDOW_S)
    assert found is not None
    assert (found.tenant, found.microusd) == ("acme", 500_000)
    assert found.ratio == pytest.approx(10.0)
    beta = rates.spike(WINDOW_S, "beta")
    assert beta is not None
    assert beta.ratio == pytest.approx(1.0)
    assert rates.spike(WINDOW_S, "nobody") is None


def test_a_new_tenant_and_small_sums_raise_nothing() -> None:
    clock = Clock()
    rates = SpendRates(clock)
    clock.pass_minutes(rates, 10, young=10_000_000)
    assert rates.spike(WINDOW_S) is None
    clock.pass_minutes(rates, 100, small=1)
    clock.pass_minutes(rates, 5, small=1000)
    assert rates.spike(WINDOW_S, "small") is None


def test_the_past_is_a_day_and_survives_a_restart() -> None:
    clock = Clock()
    rates = SpendRates(clock)
    now = int(clock.now // 60)
    rates.restore([(now - minute, "acme", 10_000) for minute in range(2000)])
    clock.pass_minutes(rates, 1, acme=40_000)
    clock.now -= 60
    found = rates.spike(60.0)
    assert found is not None
    assert found.mean_microusd == pytest.approx(10_000)
    clock.now += 2 * 86400
    assert rates.spike(60.0) is None


def test_minutes_are_bounded_where_nobody_looks() -> None:
    clock = Clock()
    rates = SpendRates(clock)
    clock.pass_minutes(rates, 2 * spend.PAST_MINUTES, acme=5)
    minutes = rates._tenants["acme"]
    assert len(minutes.spent) <= spend.PAST_MINUTES + 1
    assert minutes.total == 5 * len(minutes.spent)


def test_tenants_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spend, "MAX_TENANTS", 2)
    clock = Clock()
    rates = SpendRates(clock)
    clock.pass_minutes(rates, 100, a=100_000, b=100_000, c=100_000, d=100_000)
    clock.now -= 60
    other = rates.spike(WINDOW_S, OTHER)
    assert other is not None
    assert other.microusd == 5 * 200_000
    assert rates.spike(WINDOW_S, "d") is None


def test_the_alert_names_the_tenant_to_the_operator_alone() -> None:
    clock = Clock()
    rates = SpendRates(clock)
    watched, posted = JournalDriver(), list[dict[str, Any]]()
    settings = ObserveSettings(slo_spend_rate=3.0, slo_window_s=WINDOW_S)
    history = History(watched.journal)
    monitor = SloMonitor(watched.journal, history, settings, lambda: True, [posted.append], rates)
    clock.pass_minutes(rates, 60, acme=10_000)
    monitor.evaluate()
    assert posted == []
    watched.serve("a")
    watched.journal.record(events.Charged("a", watched.journal.clock(), 500_000))
    clock.pass_minutes(rates, 5, acme=100_000)
    clock.now -= 60
    monitor.evaluate()
    (alert,) = posted
    assert (alert["objective"], alert["cause"], alert["tenant"]) == ("spend_rate", "spend_spike", "acme")
    assert "0.5000 USD were spent in 5 minutes, where the mean of the last day is 0.0500" in alert["message"]
    assert [one["objective"] for one in monitor.alerts("acme")] == ["spend_rate"]
    assert monitor.alerts("beta") == []
    values = {one["name"]: one["value"] for one in monitor.status("beta")["objectives"]}
    assert values["spend_rate"] is None
