"""Prometheus metrics of scaling, made at a scrape: the demand is what an HPA or KEDA follows (deploy/kubernetes)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.deployment.autoscaler import Autoscaler
from penstock.deployment.local_model import LocalModel


class ScalingCollector(Collector):
    def __init__(self, models: Callable[[], Iterable[LocalModel]], autoscaler: Autoscaler) -> None:
        self._models = models
        self._autoscaler = autoscaler

    def collect(self) -> Iterator[Metric]:
        demand = GaugeMetricFamily(
            "penstock_replica_demand", "Replicas that the load of a model would fill.", labels=["model"]
        )
        replicas = GaugeMetricFamily(
            "penstock_replicas", "Replicas of a model by state; none while it is unloaded.", labels=["model", "state"]
        )
        for model in self._models():
            demand.add_metric([model.name], self._autoscaler.demand(model))
            for state, count in Counter(one.state.value for one in model.replicas.replicas).items():
                replicas.add_metric([model.name, state], count)
        yield from (demand, replicas)
