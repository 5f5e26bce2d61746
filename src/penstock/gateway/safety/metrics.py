"""Safety in Prometheus metrics, made at a scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.gateway.safety.safety import Safety


class SafetyCollector(Collector):
    def __init__(self, safety: Safety) -> None:
        self._safety = safety

    def collect(self) -> Iterator[Metric]:
        hits = CounterMetricFamily(
            "penstock_safety_hits", "Texts that matched a safety rule, by where they were.", labels=["rule", "where"]
        )
        for labels, count in list(self._safety.hits.items()):
            hits.add_metric(list(labels), count)
        failures = CounterMetricFamily(
            "penstock_safety_hook_failures", "Texts that a hook gave no verdict on.", labels=["rule", "kind"]
        )
        for hook in self._safety.rules.hooks:
            for kind, count in list(hook.failures.items()):
                failures.add_metric([hook.rule, kind], count)
        yield from (hits, failures)
