"""Prometheus metrics by tenant, for scrapes by an admin: tenants do not see each other.

The number of labels is bounded: tenants beyond the first MAX_TENANTS count together as `other`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.flow.identity import Source

MAX_TENANTS = 100
OTHER = "other"

Rows = Iterable[Mapping[str, Any]]  # as `schedule.views.Views.tenants` returns them


class TenantMetrics(Collector):
    def __init__(self, most: int = MAX_TENANTS) -> None:
        self._most = most
        self._named: set[str] = set()
        self._shares: dict[Source, Rows] = {}
        self.registry = CollectorRegistry()  # others may add theirs
        self.registry.register(self)

    def text(self, shares: Mapping[Source, Rows]) -> bytes:
        """The exposition of each replica's shares."""
        self._shares = dict(shares)
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        labels = ["model", "replica", "tenant"]
        served = CounterMetricFamily(
            "penstock_tenant_service", "Tokens served, an output token counting twice.", labels=labels
        )
        running = GaugeMetricFamily("penstock_tenant_running", "Sequences of the tenant that run.", labels=labels)
        waiting = GaugeMetricFamily("penstock_tenant_waiting", "Sequences of the tenant that wait.", labels=labels)
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {
            "cost": served,
            "running": running,
            "waiting": waiting,
        }
        for source, rows in self._shares.items():
            counts: dict[str, Counter[str]] = {}
            for row in rows:
                own = counts.setdefault(self._label(row["tenant"]), Counter())
                own.update({name: row[name] for name in families})
            for tenant, own in counts.items():
                for name, family in families.items():
                    family.add_metric([source.model, str(source.replica), tenant], own[name])
        yield from families.values()

    def _label(self, tenant: str) -> str:
        if tenant not in self._named and len(self._named) >= self._most:
            return OTHER
        self._named.add(tenant)
        return tenant
