"""Prometheus metrics of routing, made at a scrape from what the gateway has counted."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.gateway.breaker import BreakerState
from penstock.gateway.gateway import Gateway


class GatewayCollector(Collector):
    """Nothing is exposed for a server that has never had anything to decide."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        tracks = dict(self._gateway.router.tracks)
        decisions = CounterMetricFamily(
            "penstock_routing_decisions", "Requests that a policy gave to a deployment.", labels=["deployment"]
        )
        circuit = GaugeMetricFamily(
            "penstock_circuit_open", "1 while a deployment gets no requests, or only a probe.", labels=["deployment"]
        )
        stale = GaugeMetricFamily(
            "penstock_routing_signal_stale", "1 while a signal of a deployment is not relied on.",
            labels=["deployment", "signal"],
        )  # fmt: skip
        reported = self._gateway.reported_circuits()
        for name, track in tracks.items():
            decisions.add_metric([name], track.decisions)
            is_open = track.breaker.state is not BreakerState.CLOSED or name in reported
            circuit.add_metric([name], float(is_open))
            stale.add_metric([name, "load"], float(track.stale_load))
            stale.add_metric([name, "prefix"], float(track.stale_prefix))
        failures = CounterMetricFamily(
            "penstock_attempt_failures",
            "Attempts that gave no output, by the model asked for, the deployment tried and the error.",
            labels=["model", "deployment", "code"],
        )
        for key, count in list(self._gateway.fallbacks.items()):
            failures.add_metric(list(key), count)
        estimated = CounterMetricFamily(
            "penstock_estimated_usage", "Requests whose upstream reported no usage that can be true.", labels=["model"]
        )
        for model, count in list(self._gateway.estimated_usage.items()):
            estimated.add_metric([model], count)
        yield from (decisions, circuit, stale, failures, estimated)
