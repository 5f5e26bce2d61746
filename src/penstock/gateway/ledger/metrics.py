"""Prometheus metrics of usage, made at a scrape from what the accounting has counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from penstock.gateway.accounting import Accounting

LABELS = ("tenant", "model")


class UsageCollector(Collector):
    """Tokens and cost by tenant and model; tenants beyond the first few hundred are "other"."""

    def __init__(self, accounting: Accounting) -> None:
        self._accounting = accounting

    def collect(self) -> Iterator[Metric]:
        totals = self._accounting.totals
        requests = CounterMetricFamily("penstock_usage_requests", "Requests with a usage record.", labels=LABELS)
        for labels, count in list(totals.requests.items()):
            requests.add_metric(labels, count)
        tokens = CounterMetricFamily(
            "penstock_usage_tokens", "Charged tokens: input without cached ones, cached input, output, drafted output.",
            labels=[*LABELS, "kind"],
        )  # fmt: skip
        for key, count in list(totals.tokens.items()):
            tokens.add_metric(key, count)
        yield from (requests, tokens)
        for name, help_text, amounts in (
            ("cost", "What requests cost, by the prices of their models.", totals.microusd),
            ("cache_savings", "What cached input would have cost more at the price of other input.",
             totals.saved_microusd),
        ):  # fmt: skip
            family = CounterMetricFamily(f"penstock_usage_{name}_usd", help_text, labels=LABELS)
            for labels, amount in list(amounts.items()):
                family.add_metric(labels, amount / 1e6)
            yield family
        yield from self._ledger_metrics()

    def _ledger_metrics(self) -> Iterator[Metric]:
        ledger = self._accounting.ledger
        if ledger is None:
            return
        for name, help_text, count in (
            ("ledger_commits", "Transactions with usage records.", ledger.commits),
            ("ledger_records", "Usage records written.", ledger.records),
            ("ledger_failures", "Transactions that failed.", ledger.failures),
            ("ledger_dropped_records", "Usage records that were given up.", ledger.dropped),
        ):
            yield CounterMetricFamily(f"penstock_{name}", help_text, value=count)
        backlog = "Usage records that wait to be written."
        yield GaugeMetricFamily("penstock_ledger_backlog", backlog, value=ledger.backlog)
        available = "1 while usage records can be written."
        yield GaugeMetricFamily("penstock_ledger_available", available, value=float(ledger.available))
