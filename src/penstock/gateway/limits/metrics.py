"""Limits in Prometheus metrics, made at a scrape from what the limiter has counted."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.gateway.limits.limiter import Limiter


class LimitsCollector(Collector):
    """Without names of keys and tenants, of which there may be any number; `/admin/limits` has them."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter

    def collect(self) -> Iterator[Metric]:
        counts = self._limiter.counts
        yield CounterMetricFamily("penstock_limits_reservations", "Requests admitted.", counts.reservations)
        yield CounterMetricFamily("penstock_limits_settlements", "Of those, ended.", counts.settlements)
        yield CounterMetricFamily("penstock_limits_reserved_tokens", "Tokens reserved.", counts.reserved_tokens)
        yield CounterMetricFamily("penstock_limits_settled_tokens", "Tokens settled.", counts.settled_tokens)
        yield CounterMetricFamily(
            "penstock_limits_excess_tokens", "Of those, more than was reserved.", counts.excess_tokens
        )
        yield CounterMetricFamily(
            "penstock_limits_reserved_microusd", "Micro-dollars reserved.", counts.reserved_microusd
        )
        yield CounterMetricFamily("penstock_limits_settled_microusd", "Micro-dollars settled.", counts.settled_microusd)
        rejected = CounterMetricFamily(
            "penstock_limits_rejected",
            "Requests rejected, by each limit that they did not fit into, of key or tenant.",
            labels=["owner", "limit"],
        )
        for labels, count in list(counts.rejected.items()):
            rejected.add_metric(list(labels), count)
        yield rejected
        yield CounterMetricFamily(
            "penstock_limits_unchecked", "Requests admitted without the store of limits.", counts.unchecked
        )
        yield GaugeMetricFamily(
            "penstock_limits_available", "1 while the store of limits answers.", float(self._limiter.available)
        )
