"""Prometheus metrics of prefill and decode pools, made at a scrape. There are none without pools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.deployment.local_model import LocalModel


class TransferCollector(Collector):
    def __init__(self, models: Callable[[], Iterable[LocalModel]]) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        pools = [(model.name, pool.totals) for model in self._models() if (pool := model.replicas.prefill) is not None]
        if not pools:
            return
        for name, help_text in (
            ("transfers", "Prompts whose KV blocks went from a prefill replica to a decode replica."),
            ("blocks", "KV blocks that went from a prefill replica to a decode replica."),
            ("bytes", "Bytes of these KV blocks."),
            ("seconds", "Seconds that these transfers took, from the end of the prefill on."),
        ):
            title = "penstock_kv_transfers" if name == "transfers" else f"penstock_kv_transfer_{name}"
            family = CounterMetricFamily(title, help_text, labels=["model"])
            for model, totals in pools:
                family.add_metric([model], totals.sums[name])
            yield family
        failures = CounterMetricFamily(
            "penstock_kv_transfer_failures",
            "Prompts that a decode replica computed, or a client gave up, because a handoff did not go to its end.",
            labels=["model", "cause"],
        )
        for model, totals in pools:
            for cause, count in totals.failures.items():
                failures.add_metric([model, cause], count)
        yield failures
